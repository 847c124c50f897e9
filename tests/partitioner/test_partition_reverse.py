"""--undirected streams, and gives what PyG's ToUndirected gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from pyg_sar.partition import main
from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.on_disk import buckets, mapped, rows
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.sources.add_reverse_edges import add_reverse_edges
from pyg_sar.partitioner.sources.sources import load_source


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few edges and rows, and no scratch space in memory."""
    monkeypatch.setattr(rows, 'CHUNK_ROWS', 7)
    monkeypatch.setattr(buckets, 'CHUNK_ROWS', 5)
    monkeypatch.setattr(rows, '_CHUNK_BYTES', 24)
    monkeypatch.setattr(mapped, '_IN_MEMORY', 0)


def _edges(num_src: int, num_dst: int, num_edges: int, seed: int) -> dict[str, Any]:
    """Among few nodes, so with loops and edges of three and more copies."""
    generator = torch.Generator().manual_seed(seed)
    ends = [torch.randint(n, (num_edges,), generator=generator) for n in (num_src, num_dst)]
    return {
        'edge_index': torch.stack(ends),
        'edge_attr': torch.randint(-9, 9, (num_edges, 2, 3), generator=generator) / 4,
        'edge_weight': torch.randint(9, (num_edges,), generator=generator).double() / 2,
        'edge_type': torch.randint(5, (num_edges,), generator=generator),
    }


GRAPHS = {
    'few nodes': lambda: Data(x=torch.randn(9, 2), **_edges(9, 9, 70, 0)),
    'no attributes': lambda: Data(edge_index=_edges(30, 30, 90, 1)['edge_index'], num_nodes=31),
    'no duplicates': lambda: Data(
        edge_index=torch.tensor([[0, 3, 1], [1, 2, 3]]), edge_weight=torch.rand(3), num_nodes=5
    ),
    'no edges': lambda: Data(
        edge_index=torch.empty(2, 0, dtype=torch.int64), edge_attr=torch.empty(0, 3), num_nodes=4
    ),
    'relations': lambda: HeteroData(
        {
            'a': {'num_nodes': 12},
            'b': {'x': torch.randn(5, 3)},
            ('a', 'to', 'b'): _edges(12, 5, 40, 2),
            ('a', 'has', 'a'): _edges(12, 12, 60, 3),
        }
    ),
}


@pytest.mark.parametrize('make', GRAPHS.values(), ids=GRAPHS.keys())
@pytest.mark.parametrize('on_disk', [False, True])
def test_as_to_undirected(tmp_path, make, on_disk):
    """Elementwise: quarters are added without rounding, in whatever order."""
    data = make()
    before = {key: value.clone() for key, value in data.edge_stores[0].items() if 'edge' in key}
    found = add_reverse_edges(data, Scratch(tmp_path if on_disk else None))
    wanted = ToUndirected()(data)
    assert mapped.is_mapped(found.edge_stores[-1].edge_index) == (on_disk and data.num_edges > 0)
    assert [store._key for store in found.stores] == [store._key for store in wanted.stores]
    for ours, theirs in zip(found.stores, wanted.stores, strict=True):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            if isinstance(value, torch.Tensor):
                assert ours[key].dtype == value.dtype
                assert torch.equal(ours[key], value), key
            else:
                assert ours[key] == value
    assert all(torch.equal(data.edge_stores[0][key], value) for key, value in before.items())
    assert list(tmp_path.iterdir()) == []


def test_sums_are_in_the_order_of_the_edges():
    """Five copies of an edge whose weights do not add up the same in any other order."""
    weight = torch.tensor([1e8, 3.0, -1e8, 7.0, 1e-3], dtype=torch.float32)
    edge_index = torch.tensor([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    found = add_reverse_edges(Data(edge_index=edge_index, edge_weight=weight, num_nodes=2))
    total = torch.zeros(())
    for value in weight:
        total += value
    assert found.edge_weight.tolist() == [float(total)] * 2


def test_command_line_leaves_the_graph_on_disk(tmp_path, monkeypatch):
    source = tmp_path / 'graph'
    source.mkdir()
    for key, value in GRAPHS['few nodes']().items():
        np.save(source / f'{key}.npy', value.numpy())
    partition_graph(ToUndirected()(load_source(source)), 2, tmp_path / 'memory')
    found: list[Scratch] = []
    monkeypatch.setattr(
        'pyg_sar.partition.Scratch', lambda folder: found.append(Scratch(folder)) or found[-1]
    )
    arguments = [str(source), str(tmp_path / 'disk'), '--num-parts', '2', '--quiet']
    assert main([*arguments, '--undirected']) == 0
    assert len(found) == 1
    for file in sorted((tmp_path / 'memory').rglob('*.pt')):
        other = tmp_path / 'disk' / file.relative_to(tmp_path / 'memory')
        assert file.read_bytes() == other.read_bytes(), file.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ['disk', 'graph', 'memory']


@pytest.mark.parametrize(
    ('data', 'message'),
    [
        (Data(edge_index=torch.tensor([[0, -1], [1, 0]])), 'must hold ids >= 0'),
        (Data(edge_index=torch.rand(2, 3)), 'must hold integers'),
        (
            Data(edge_index=torch.tensor([[0, 1, 1], [1, 0, 1]]), edge_name=['a', 'b', 'c']),
            "expected a dense tensor in 'edge_name'",
        ),
    ],
)
def test_refused(data, message):
    with pytest.raises(ValueError, match=message):
        add_reverse_edges(data)
