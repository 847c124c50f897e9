"""Output, gradients of inputs and of parameters equal one process of plain PyG, elementwise.

Here every kind of conv, on every number of ranks, cut, mode, precision and form of rows; in
tests/conformance every configuration of every conv, on three ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from alike import assert_same
from conv_case import make
from conv_cases import ANY, CASES, EXACT, MORE
from conv_graphs import plain
from exact import TOLERANCE, TOLERANCE_FLOAT32, Result, as_dtype, run_case, step
from few import few
from outcome import assert_exact
from ranks import run_as_threads, run_ranks

import pyg_sar
from pyg_sar.partition import metis

MODES = ['sequential', 'sequential_no_remat', 'one_shot']

WIDELY = [
    # linear
    *('SAGEConv: aggr=mean', 'GCNConv: default', 'GINConv: learnable eps', 'APPNP: K=3'),
    *('ChebConv: K=3, sym, weights', 'RGCNConv: bases'),
    # weighted
    *('GATConv: concat=False, residual', 'GATConv: edge features'),
    # replay
    *('GINEConv: edge features', 'NNConv: mean', 'PNAConv: all scalers'),
    *('EdgeConv: aggr=max, ties', 'SAGEConv: aggr=max, project (ties)'),
    # softmax
    *('GATv2Conv: edge features', 'TransformerConv: edge features'),
    'GENConv: softmax, learnable t',
    # gather
    *('SAGEConv: aggr=median', 'FastRGCNConv: sum, bases'),
]
"""Every path and kind of conv: these run on every layout."""

OTHERS = [
    *('SAGEConv: all that are fused', 'GCNConv: learnable weights', 'GATConv: turned'),
    *('GraphConv: min, weights', 'SAGEConv: aggr=std', 'TransformerConv: beta'),
    *('SAGEConv: aggr=mul', 'DNAConv: 2 heads', 'PointTransformerConv: default'),
    *('RGATConv: mod=scaled', 'MessagePassing: two propagates, node_dim=1'),
    *('SAGEConv: mean, max and std, mode=attn', 'MessagePassing: two softmaxes, one of the other'),
    *('GeneralConv: additive attention', 'SAGEConv: softmax and median'),
    *('EGConv: sum, max, std, symnorm', 'ResGatedGraphConv: edge features', 'GCN2Conv: theta'),
    *('GENConv: power, learnable p', 'ARMAConv: 2 stacks of 2, weights', 'CGConv: edge features'),
    *('SimpleConv: aggr=Attentional with net', 'FeaStConv: 2 heads', 'LEConv: weights'),
    *('DirGNNConv: GAT', 'FAConv: normalized', 'GMMConv: default', 'PDNConv: turned'),
    *('SAGEConv: aggr=median, turned', 'GCNConv: flow=target_to_source'),
    *('AGNNConv: learnable beta', 'FiLMConv: 3 relations', 'MFConv: default'),
    *('MixHopConv: default', 'WLConvContinuous: weights'),
    *('MessagePassing: own update that reads x', 'MessagePassing: reads x_i only'),
    *('GatedGraphConv: weights', 'PNAConv: mean, sum', 'EdgeConv: aggr=add', 'RGATConv: additive'),
]
PLAIN = [name for name in EXACT if CASES[name].graph == 'plain' and not CASES[name].is_single]


@pytest.fixture(scope='session')
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per method and number of parts; METIS's with nodes in another order than by id."""
    root = tmp_path_factory.mktemp('parity')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metis, 'ROWS', 4)
        for num_parts in (1, 2, 3, 4, 6):
            for method in ('metis', 'random'):
                folder = root / f'{method}{num_parts}'
                pyg_sar.partition_graph(plain(), num_parts, folder, method=method)
    return root


def _run(name: str, root: str, how: dict[str, Any]) -> Result:
    return run_case(ANY[name], root, **how)


def check(
    name: str, world_size: int, root: Path, *, on_ranks: Any = run_as_threads, **how: Any
) -> None:
    """A case on ranks, or on this process alone, which then holds all parts."""
    if world_size == 1:
        results = [_run(name, str(root), how)]
    else:
        results = on_ranks(_run, world_size, name, str(root), how)
    is_float32 = how.get('dtype') == torch.float32
    assert_exact(name, results, TOLERANCE_FLOAT32 if is_float32 else TOLERANCE)


def _slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


KINDS = [*WIDELY, *few(OTHERS)]


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize(
    ('parts', 'mode'), [('metis1', 'sequential'), _slow('random4', 'one_shot')]
)
def test_one_process(partitions: Path, name: str, parts: str, mode: str) -> None:
    check(name, 1, partitions / parts, mode=mode)


@pytest.mark.parametrize('name', KINDS)
@pytest.mark.parametrize(
    ('mode', 'on_ranks'),
    [
        *(('sequential', run_ranks), ('sequential', run_as_threads)),
        *(_slow('sequential_no_remat', run_as_threads), _slow('one_shot', run_ranks)),
    ],
)
def test_three_ranks(partitions: Path, name: str, mode: str, on_ranks: Any) -> None:
    check(name, 3, partitions / 'random3', on_ranks=on_ranks, mode=mode)


@pytest.mark.parametrize('name', MORE)
@pytest.mark.parametrize('world_size', [1, 3])
def test_more_convs(partitions: Path, name: str, world_size: int) -> None:
    check(name, world_size, partitions / 'random3')


@pytest.mark.slow
@pytest.mark.parametrize('name', PLAIN)
def test_four_ranks(partitions: Path, name: str) -> None:
    check(name, 4, partitions / 'random4')


LAYOUTS = (
    *((1, 'metis1'), (2, 'metis2'), (2, 'random4'), (3, 'metis3')),
    *((3, 'random6'), (4, 'metis4'), (4, 'random4')),
)


@pytest.mark.slow
@pytest.mark.parametrize('name', WIDELY)
@pytest.mark.parametrize(
    ('world_size', 'parts', 'mode'),
    [
        *((*layout, 'sequential') for layout in LAYOUTS),
        *((*layout, mode) for layout in LAYOUTS[2::4] for mode in MODES[1:]),
    ],
)
def test_world_sizes(partitions: Path, name: str, world_size: int, parts: str, mode: str) -> None:
    """One part per rank and several."""
    check(name, world_size, partitions / parts, mode=mode)


def _values(name: str, root: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    case, data = ANY[name], as_dtype(pyg_sar.load_shard(root), dtype)
    found = step(case, pyg_sar.DistributedDataParallel(make(case).to(dtype)), data)
    return {key: value.detach() for key, value in found.items()}


@pytest.mark.parametrize('name', few(WIDELY))
@pytest.mark.parametrize('world_size', [3, _slow(2), _slow(4)])
def test_threads_have_the_bits_of_processes(partitions: Path, name: str, world_size: int) -> None:
    """So the tests above hold for processes, too."""
    root = str(partitions / ('random4' if world_size == 4 else 'random6'))
    for dtype in (torch.float32, torch.float64):
        threads, processes = (
            on_ranks(_values, world_size, name, root, dtype)
            for on_ranks in (run_as_threads, run_ranks)
        )
        for ours, theirs in zip(threads, processes, strict=True):
            assert_same(ours, theirs, tolerance=0)


@pytest.mark.slow
@pytest.mark.parametrize('name', [*WIDELY, *OTHERS])
def test_float32(partitions: Path, name: str) -> None:
    check(name, 3, partitions / 'metis3', dtype=torch.float32)


@pytest.mark.parametrize(
    'name',
    ['SAGEConv: aggr=mean', 'NNConv: mean', 'GATConv: edge features', 'TransformerConv: beta'],
)
def test_autocast(partitions: Path, name: str) -> None:
    """bfloat16 rounds differently where sums are made block by block, but no gradient is lost."""
    case, data = ANY[name], pyg_sar.load_shard(partitions / 'metis3')
    with torch.autocast('cpu', dtype=torch.bfloat16):
        want = step(case, make(case).float(), as_dtype(plain(), torch.float32))
        module = pyg_sar.DistributedDataParallel(make(case).float())
        found = step(case, module, as_dtype(data, torch.float32))
    # Some gradients are nothing but rounding.
    largest = max(value.abs().max() for value in want.values())
    for key, value in want.items():
        assert (found[key] - value).abs().max() <= 0.1 * value.abs().max() + 0.01 * largest, key
