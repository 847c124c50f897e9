"""SIGN equals PyG's transform, and node attributes survive in the partition folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from graphs import awkward_graph
from ranks import run_ranks
from small_graphs import assemble, assert_all_raise, assert_close, attempt
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.shard.format.meta import read_json, signed
from pyg_sar.transforms import save

# PyG's own transform makes a sparse tensor.
pytestmark = [
    pytest.mark.filterwarnings('ignore:Sparse invariant checks:UserWarning'),
    pytest.mark.filterwarnings('ignore:Sparse CSC tensor support:UserWarning'),
]

K = 3
NUM_NODES = 60
CUTS: dict[str, tuple[int, Any]] = {
    'metis': (3, 'metis'),
    'random, two parts per rank': (6, 'random'),
    'nobody on rank 0': (3, 1 + torch.arange(NUM_NODES) % 2),
}


def _graph(*, weighted: bool) -> Data:
    graph = awkward_graph(NUM_NODES)
    if not weighted:
        del graph.edge_weight
    return graph


def _expected(graph: Data) -> Data:
    if graph.edge_weight is None:  # PyG's own would be float32
        graph.edge_weight = torch.ones(graph.num_edges, dtype=torch.float64)
    return T.SIGN(K)(graph)


def _cut(root: Path, name: str = 'random, two parts per rank', *, weighted: bool = True) -> str:
    num_parts, method = CUTS[name]
    pyg_sar.partition_graph(_graph(weighted=weighted), num_parts, root / 'parts', method=method)
    return str(root / 'parts')


def _names() -> list[str]:
    return [f'x{hop}' for hop in range(1, K + 1)]


def _hops(data: Data) -> list[tuple[Tensor, Tensor]]:
    return pyg_sar.local([(data.n_id, data[name]) for name in _names()])


def _propagate(root: str) -> list[tuple[Tensor, Tensor]]:
    data = pyg_sar.load_shard(root)
    out = pyg_sar.transforms.SIGN(K)(data)
    assert 'x1' not in data
    assert not any(out[name].requires_grad for name in _names())
    return _hops(out)


def _check_hops(ranks: list[list[tuple[Tensor, Tensor]]], expected: Data) -> None:
    for name, pieces in zip(_names(), zip(*ranks, strict=True), strict=True):
        assert_close(assemble(pieces, NUM_NODES), expected[name])


@pytest.mark.parametrize('weighted', [True, False])
@pytest.mark.parametrize('name', CUTS)
def test_sign_equals_one_process(tmp_path: Path, name: str, weighted: bool) -> None:
    root = _cut(tmp_path, name, weighted=weighted)
    expected = _expected(_graph(weighted=weighted))
    _check_hops(run_ranks(_propagate, 3, root), expected)
    _check_hops([_propagate(root)], expected)


def test_sign_is_pygs_on_a_plain_graph() -> None:
    transform = pyg_sar.transforms.SIGN(K)
    expected = T.SIGN(K)(_graph(weighted=True))
    found = transform(_graph(weighted=True))
    assert all(torch.equal(found[name], expected[name]) for name in _names())
    assert repr(transform) == 'SIGN(K=3)'


@pytest.mark.parametrize('x', [None, torch.ones(NUM_NODES, 2, dtype=torch.int64)])
def test_sign_wants_features(tmp_path: Path, x: Tensor | None) -> None:
    graph = _graph(weighted=True)
    graph.x = x
    graph.num_nodes = NUM_NODES
    pyg_sar.partition_graph(graph, 2, tmp_path / 'parts')
    with pytest.raises(ValueError, match="'x'"):
        pyg_sar.transforms.SIGN(1)(pyg_sar.load_shard(tmp_path / 'parts'))


def _save(root: str, **kwargs: Any) -> None:
    data = pyg_sar.transforms.SIGN(K)(pyg_sar.load_shard(root))
    pyg_sar.transforms.save_node_attrs(data, _names(), **kwargs)


def _load(root: str) -> tuple[list[tuple[Tensor, Tensor]], dict[str, Tensor]]:
    data = pyg_sar.load_shard(root)
    return _hops(data), pyg_sar.local({key: data[key] for key in ('x', 'y', 'train_mask', 'n_id')})


def _node_attrs(root: str) -> dict[str, Any]:
    meta = json.loads((Path(root) / 'META.json').read_text(encoding='utf-8'))
    found: dict[str, Any] = meta['pyg_sar']['node_attrs']
    return found


def _files(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob('*')}


def test_saved_on_three_ranks_loaded_on_any_number(tmp_path: Path) -> None:
    root = _cut(tmp_path)
    files = _files(root)
    attrs = _node_attrs(root)
    run_ranks(_save, 3, root)
    graph = _graph(weighted=True)
    for world_size in (1, 2, 3, 6):
        answers = run_ranks(_load, world_size, root)
        _check_hops([hops for hops, _ in answers], _expected(graph))
        for _, old in answers:
            for key in ('x', 'y', 'train_mask'):
                assert torch.equal(old[key], graph[key][old['n_id']])
    row_type = {'dtype': 'float64', 'shape': [8]}
    assert _node_attrs(root) == {**attrs, **dict.fromkeys(_names(), row_type)}
    assert _files(root) == files  # nothing temporary is left
    size = sum(p.stat().st_size for p in Path(root).rglob('node_attrs.pt'))
    assert size < 1.5 * K * NUM_NODES * 8 * 8 + 6 * 8000  # a view would save whole matrices


def test_one_process_saves_all_parts(tmp_path: Path) -> None:
    root = _cut(tmp_path)
    _save(root)
    _check_hops([_load(root)[0]], _expected(_graph(weighted=True)))


def _save_sum(root: str, value: float, overwrite: bool) -> None:
    data = pyg_sar.load_shard(root)
    data.bias = data.n_id.float() + value
    pyg_sar.transforms.save_node_attrs(data, ['bias'], overwrite=overwrite)


def test_overwrite(tmp_path: Path) -> None:
    root = _cut(tmp_path)
    run_ranks(_save_sum, 3, root, 1.0, False)
    run_ranks(_save_sum, 2, root, 2.0, True)
    data = pyg_sar.load_shard(root)
    assert torch.equal(data.bias, data.n_id + 2.0)


def _interrupted(root: str, where: str, rank: int, overwrite: bool) -> str:
    """Rank `rank` fails after `where`, as if its disk were full."""
    real: Callable[..., None] = getattr(save, where)

    def fail(*args: Any) -> None:
        real(*args)
        if dist.get_rank() == rank:
            raise OSError('no space left')

    setattr(save, where, fail)
    try:
        return attempt(_save_sum, root, 5.0, overwrite)
    finally:
        setattr(save, where, real)


@pytest.mark.parametrize('overwrite', [False, True])
def test_a_rank_that_fails_leaves_a_readable_folder(tmp_path: Path, overwrite: bool) -> None:
    root = _cut(tmp_path)
    files = _files(root)
    if overwrite:
        run_ranks(_save_sum, 3, root, 1.0, False)
    outcomes = run_ranks(_interrupted, 3, root, '_write_parts', 1, overwrite)
    assert_all_raise(outcomes, 'OSError', 'no space left')
    assert 'bias' not in pyg_sar.load_shard(root)
    assert _files(root) == files
    run_ranks(_save_sum, 3, root, 3.0, False)
    data = pyg_sar.load_shard(root)
    assert torch.equal(data.bias, data.n_id + 3.0)


def test_parts_without_names_are_not_read(tmp_path: Path) -> None:
    """The program ends after the parts are written, before META.json is."""
    root = _cut(tmp_path)
    content = read_json(root)
    _save_sum(root, 1.0, False)
    checksums = content['pyg_sar']['checksums']
    for name in [name for name in checksums if name.endswith('node_attrs.pt')]:
        del checksums[name]
    (tmp_path / 'parts' / 'META.json').write_text(signed(content))
    data = pyg_sar.load_shard(root)
    assert 'bias' not in data
    data.other = data.x[:, 0]
    pyg_sar.transforms.save_node_attrs(data, ['other'])
    stored = torch.load(tmp_path / 'parts' / 'part_0' / 'node_attrs.pt', weights_only=True)
    assert 'bias' not in stored
    assert torch.equal(pyg_sar.load_shard(root).other, data.other)


def _refusals(root: str) -> list[str]:
    data = pyg_sar.load_shard(root)
    rank = dist.get_rank()
    data.short = torch.ones(NUM_NODES - 1) if rank == 2 else data.x
    data.mixed = data.x.float() if rank == 2 else data.x
    data.new = data.x
    data.edge_type = data.x[:, 0]
    own = pyg_sar.local(data)
    plain = Data(x=data.x, edge_index=torch.zeros(2, 0, dtype=torch.int64))
    return [
        attempt(pyg_sar.transforms.save_node_attrs, data, [name])
        for name in ('short', 'mixed', 'y', 'x', 'edge_type', 'absent')
    ] + [attempt(pyg_sar.transforms.save_node_attrs, each, ['new']) for each in (plain, own)]


def test_refused_on_all_ranks(tmp_path: Path) -> None:
    root = _cut(tmp_path, 'metis')
    words = [
        "one row per own node in 'short'",
        'same node attributes on all ranks',
        "'y', which",
        "(got 'x')",
        "'edge_type', which is in edge_attrs",
        "one row per own node in 'absent'",
        'the data that pyg_sar.load_shard gave',
        'pyg_sar.local',
    ]
    before = (tmp_path / 'parts' / 'META.json').read_bytes()
    outcomes = run_ranks(_refusals, 3, root)
    for found, part in zip(zip(*outcomes, strict=True), words, strict=True):
        assert_all_raise(found, 'ValueError', part)
    assert (tmp_path / 'parts' / 'META.json').read_bytes() == before


def test_a_folder_that_has_changed_is_refused(tmp_path: Path) -> None:
    root = _cut(tmp_path)
    data = pyg_sar.load_shard(root)
    data.new = data.x
    pyg_sar.partition_graph(_graph(weighted=True), 6, root, method='random', seed=1, force=True)
    with pytest.raises(ValueError, match='another one'):
        pyg_sar.transforms.save_node_attrs(data, ['new'])


def test_typed_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match='homogeneous'):
        pyg_sar.transforms.save_node_attrs(HeteroData(), ['new'])
