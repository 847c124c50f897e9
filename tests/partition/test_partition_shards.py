"""The shards against an oracle in plain Python that knows the graph and the format alone."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import pytest
import torch
from graph_files import assert_same
from graphs import awkward_graph
from pairs import covering
from partition_files import meta_of
from torch_geometric.data import Data

from pyg_sar.partition.options import CutOptions
from pyg_sar.partition.partition_graph import cut_graph, partition_graph

KINDS = [
    *('directed', 'loops_and_duplicates', 'isolated', 'communities'),
    *('star', 'no_edges', 'as_many_edges_as_nodes', 'bare'),
]


@pytest.mark.parametrize(
    ('kind', 'method', 'num_parts'),
    covering(KINDS, ['metis', 'ldg', 'random', 'range'], [3, 1, 2, 7]),
)
def test_every_invariant(make_graph, tmp_path, check_partition, kind, method, num_parts):
    graph = make_graph(kind)
    summary = partition_graph(graph, num_parts, tmp_path / 'parts', method=method)
    part_of = check_partition(tmp_path / 'parts', graph, num_parts)
    assert set(part_of) == set(range(num_parts))
    sizes = [part_of.count(part) for part in range(num_parts)]
    assert list(summary.part_num_nodes) == sizes


def test_as_many_parts_as_nodes(tmp_path, check_partition, make_graph):
    for i, data in enumerate((make_graph('no_edges'), make_graph('star'), awkward_graph(9, 30))):
        partition_graph(data, data.num_nodes, tmp_path / f'{i}')
        part_of = check_partition(tmp_path / f'{i}', data, data.num_nodes)
        assert sorted(part_of) == list(range(data.num_nodes))


@pytest.mark.parametrize('suffix', ['.npy', '.pt', '.txt'])
def test_parts_from_file(graph, tmp_path, check_partition, suffix):
    parts, path = torch.arange(graph.num_nodes) * 3 % 4, tmp_path / f'parts{suffix}'
    if suffix == '.pt':
        torch.save(parts.int(), path)
    elif suffix == '.npy':
        np.save(path, parts.byte().numpy())
    else:
        path.write_text('\n'.join(map(str, parts.tolist())))
    partition_graph(graph, 4, tmp_path / 'out', method=f'file:{path}')
    assert check_partition(tmp_path / 'out', graph, 4) == parts.tolist()


def test_empty_parts_and_parts_without_edges(any_graph, tmp_path, check_partition):
    """Parts 0 and 3 of 5 are empty; one node alone is part 4."""
    parts = torch.arange(any_graph.num_nodes) % 2 + 1
    parts[-1] = 4
    partition_graph(any_graph, 5, tmp_path / 'out', method=parts)
    assert check_partition(tmp_path / 'out', any_graph, 5) == parts.tolist()


def test_one_part_reads_all_and_the_others_nothing(tmp_path, check_partition, make_graph):
    data = make_graph('star')
    parts = torch.arange(20) % 3
    summary = partition_graph(data, 3, tmp_path / 'out', method=parts)
    check_partition(tmp_path / 'out', data, 3)
    assert summary.part_num_edges == (19, 0, 0)
    assert summary.halo_rows == ((0, 7, 6), (0, 0, 0), (0, 0, 0))
    assert summary.boundary_rows == (0, 7, 6)


def test_graph_is_not_changed(graph, tmp_path):
    before = graph.clone()
    partition_graph(graph, 3, tmp_path / 'out')
    assert_same(graph, before)


@pytest.mark.parametrize('dtype', [torch.int32, torch.int16, torch.uint8])
def test_other_integer_types(graph, tmp_path, check_partition, dtype):
    """As a transposed view, which is not contiguous."""
    narrow = graph.clone()
    narrow.edge_index = graph.edge_index.to(dtype).t().contiguous().t()
    partition_graph(narrow, 3, tmp_path / 'out')
    check_partition(tmp_path / 'out', graph, 3)


def test_fingerprint_tells_graphs_apart(tmp_path):
    """The same parts of another graph are another partition."""

    def fingerprint(edges: list[list[int]], name: str) -> str:
        data = Data(edge_index=torch.tensor(edges), num_nodes=4)
        partition_graph(data, 2, tmp_path / name, method=torch.tensor([0, 0, 1, 1]))
        return str(meta_of(tmp_path / name)['fingerprint'])

    a = fingerprint([[0, 1], [1, 2]], 'a')
    assert fingerprint([[0, 1], [1, 2]], 'b') == a
    assert fingerprint([[1, 0], [2, 1]], 'c') != a


def test_summary_counts(tmp_path):
    """0 -> 1 -> 2 -> 3 with a doubled cut edge, cut in the middle."""
    data = Data(edge_index=torch.tensor([[0, 1, 1, 2], [1, 2, 2, 3]]), num_nodes=4)
    summary = partition_graph(data, 2, tmp_path / 'out', method=torch.tensor([0, 0, 1, 1]))
    want = {
        **{'method': 'tensor', 'num_nodes': 4, 'num_edges': 4, 'num_parts': 2},
        **{'part_num_nodes': (2, 2), 'part_num_edges': (1, 3), 'edge_cut': 2},
        **{'halo_rows': ((0, 0), (1, 0)), 'boundary_rows': (1, 0), 'communication_volume': 1},
        **{'node_imbalance': 1.0, 'edge_imbalance': 1.5, 'work_imbalance': 1.25},  # 3 and 5.
        **{'largest_block_rows': 1, 'largest_block_edges': 2},
    }
    assert {name: getattr(summary, name) for name in want} == want
    text = str(summary)
    assert '4 nodes and 4 edges in 2 parts (tensor)' in text
    assert '2 (50.0% of the edges)' in text
    assert '1 rows per layer (0.25 per node)' in text
    with pytest.raises(AttributeError):
        summary.edge_cut = 0  # type: ignore[misc]


def test_command_and_versions_are_noted(graph, tmp_path):
    cut_graph(graph, 2, tmp_path / 'out', CutOptions(), command=['a', 'b'])
    ours = meta_of(tmp_path / 'out')
    assert ours['command'] == ['a', 'b']
    assert ours['versions']['torch'] == version('torch')
