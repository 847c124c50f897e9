"""Tensors that all ranks of a process have in common give what they give on processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import cut_of, itself
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, Sequential

import pyg_sar
from pyg_sar.comm import ranks, vote

DATA = small_graph()
NUM_NODES, NUM_EDGES = DATA.num_nodes, DATA.num_edges
KINDS = ('edge_index', 'edge_weight', 'coo', 'csr', 'mask', 'ids')


def _in_turns(program: Callable[..., Any], spill: Path, *args: Any) -> list[Any]:
    """What a program gives on each of three ranks; its first argument is their data."""
    root = cut_of(small_graph, 3)

    def on_rank(*args: Any) -> Any:
        return program(pyg_sar.load_shard(root), *args)

    return pyg_sar.run_in_turns(on_rank, root, *args, memory='1GB', spill=spill).results


def _assert_each(results: list[Any], expected: Any) -> None:
    for found in results:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def _shared(kind: str) -> Any:
    """What all ranks get."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(NUM_NODES, (2, 90), generator=generator)
    numbers = torch.rand(NUM_EDGES, generator=generator, dtype=torch.float64)
    matrix = torch.sparse_coo_tensor(ids, numbers[:90], (NUM_NODES, NUM_NODES)).coalesce()
    of_kinds = ids, numbers, matrix, matrix.to_sparse_csr(), numbers[:NUM_NODES] < 0.5, ids[0]
    return dict(zip(KINDS, of_kinds, strict=True))[kind]


def _trained(data: Any, kind: str, shared: Any, wrap: Any = None) -> list[Tensor]:
    """The outputs of three steps, and the gradients of the last."""
    torch.manual_seed(0)
    conv = GCNConv if kind == 'edge_weight' else SAGEConv
    model = (wrap or pyg_sar.DistributedDataParallel)(conv(6, 3).double())
    edges = shared if kind in ('edge_index', 'coo', 'csr') else data.edge_index
    weights = (shared,) if kind == 'edge_weight' else ()
    found = []
    for _ in range(3):
        model.zero_grad()
        out, y = model(data.x, edges, *weights), data.y
        if kind in ('mask', 'ids'):
            out, y = out[shared], y[shared]
        F.cross_entropy(out, y).backward()
        whole = pyg_sar.gather(out.detach()) if kind not in ('mask', 'ids') else out.sum(0).detach()
        found.append(whole.clone())
    return [*found, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.filterwarnings('ignore:.*parse CSR tensor support')  # the first of a process
@pytest.mark.filterwarnings('ignore:Converting sparse tensor to CSR')
@pytest.mark.parametrize('kind', KINDS)
def test_one_tensor_for_all_ranks(tmp_path: Path, kind: str) -> None:
    expected = _trained(DATA, kind, _shared(kind), itself)
    _assert_each(_in_turns(_trained, tmp_path, kind, _shared(kind)), expected)


def _around_a_change(data: Any, ids: Tensor) -> list[Tensor]:
    """Rank 0 writes to what all have, between two forwards."""
    found, model = [], pyg_sar.DistributedDataParallel(_summing())
    for step in range(2):
        found.append(pyg_sar.gather(model(data.x, ids).detach()).clone())
        if step == ranks.rank() == 0:
            ids[0, :20] = 7
        vote.agree(step)
    return found


def _summing() -> SAGEConv:
    torch.manual_seed(0)
    return SAGEConv(6, 3).double()


def test_a_change_is_seen_by_all_ranks(tmp_path: Path) -> None:
    ids, changed = _shared('edge_index'), _shared('edge_index')
    changed[0, :20] = 7
    expected = [_summing()(DATA.x, each).detach() for each in (ids, changed)]
    _assert_each(_in_turns(_around_a_change, tmp_path, ids), expected)


def _around(conv: torch.nn.Module) -> torch.nn.Module:
    return Sequential('x, edge_index', [(conv, 'x, edge_index -> x')])


def _conv() -> torch.nn.Module:
    return GATConv(6, 3).double()


def _output(data: Any, model: Any) -> Tensor:
    out: Tensor = model(data.x, data.edge_index)
    return out


Parallel = pyg_sar.DistributedDataParallel
LEARNS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Tensor]]] = {
    'leaf': (
        lambda: torch.ones(6, dtype=torch.float64, requires_grad=True),
        lambda data, leaf: data.x * leaf,
    ),
    'layer': (lambda: torch.nn.Linear(6, 3).double(), lambda data, layer: layer(data.x)),
    'plain': (_conv, _output),
    'wrapped by all': (_conv, lambda data, model: _output(data, Parallel(model))),
    'wrapped before': (lambda: Parallel(_conv()), _output),
    'a part': (_conv, lambda data, model: _output(data, Parallel(_around(model)))),
}
"""What is made for all ranks, and what each does with it."""


def _learns(data: Any, how: str, model: Any) -> None:
    LEARNS[how][1](data, model).square().mean().backward()


@pytest.mark.parametrize('how', LEARNS)
def test_what_learns_is_of_one_rank(tmp_path: Path, how: str) -> None:
    with pytest.raises(ValueError, match=r"expected a (model|tensor) of this rank's own"):
        _in_turns(_learns, tmp_path, how, LEARNS[how][0]())


def _own_leaf(data: Any) -> Tensor:
    weight = torch.ones(6, dtype=torch.float64, requires_grad=True)
    (data.x * weight).square().mean().backward()
    assert weight.grad is not None
    return weight.grad


def test_a_leaf_of_a_ranks_own(tmp_path: Path) -> None:
    expected = 2 * DATA.x.square().sum(0) / DATA.x.numel()
    for _ in range(2):
        _assert_each(_in_turns(_own_leaf, tmp_path), expected)
