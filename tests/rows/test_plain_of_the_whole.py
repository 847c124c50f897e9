"""Where rows are meant, a plain tensor has those of the whole graph, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_as_threads
from small_graphs import assign, cut, small_graph

import pyg_sar

N, E = 40, small_graph().num_edges
OF_NODES, OF_EDGES = torch.arange(N) * 10.0, torch.arange(E) * 3


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(cut(small_graph(), 3, tmp_path_factory.mktemp('graph') / 'parts'))


def _set_on_data(data: Any, root: str) -> bool:
    data.y, data.table = OF_NODES, OF_NODES.numpy()
    data.weight, data.edge_time = OF_EDGES.double(), OF_EDGES
    loader = pyg_sar.NeighborLoader(data, [-1], batch_size=4, weight_attr='weight', shuffle=True)
    is_right = [
        torch.equal(batch.y, batch.n_id * 10.0)
        and torch.equal(torch.as_tensor(batch.table), batch.n_id * 10.0)
        and torch.equal(batch.edge_time, batch.e_id * 3)
        for batch in loader
    ]
    own = pyg_sar.local(data)
    return all(is_right) and torch.equal(own.y, own.n_id * 10.0)


def _written_to(data: Any, root: str) -> bool:
    data.y = OF_NODES.clone()
    pyg_sar.local(data)
    data.y += 1
    own = pyg_sar.local(data)
    return torch.equal(own.y, own.n_id * 10.0 + 1)


def _of_seeds(data: Any, root: str) -> bool:
    data.when = OF_NODES
    mask = torch.arange(N) % 3 > 0
    right = []
    rows_of_mask = pyg_sar.gather(data.n_id) % 3 > 0
    for nodes, time in ((None, OF_NODES), (mask, OF_NODES[mask]), (rows_of_mask, OF_NODES[mask])):
        loader = pyg_sar.NeighborLoader(
            data, [2], nodes, input_time=time + 5, time_attr='when', batch_size=7
        )
        right += [torch.equal(b.seed_time, b.n_id[: b.batch_size] * 10.0 + 5) for b in loader]
    return all(right)


def _of_links(data: Any, root: str) -> bool:
    of_whole, right = small_graph().edge_index, []
    ids, mask = torch.arange(0, E, 2).flip(0), torch.arange(E) % 3 > 0
    for chosen in (slice(None), ids, mask):
        links = None if chosen == slice(None) else data.edge_index[:, chosen]
        label = torch.arange(E)[chosen]
        loader = pyg_sar.LinkNeighborLoader(data, [2], links, label, batch_size=20)
        right += [
            torch.equal(of_whole[:, b.edge_label], b.n_id[b.edge_label_index]) for b in loader
        ]
    return all(right)


def _of_negatives(data: Any, root: str) -> bool:
    only = torch.zeros(N).index_fill(0, torch.tensor([5, 31]), 1.0)
    asked = {'mode': 'triplet', 'amount': 1, 'dst_weight': only}
    links = data.edge_index[:, small_graph().edge_index[0] < 3]
    loader = pyg_sar.LinkNeighborLoader(data, [1], links, neg_sampling=asked, batch_size=2)
    return all(set(b.n_id[b.dst_neg_index].tolist()) <= {5, 31} for b in loader)


def _of_an_embedding(data: Any, root: str) -> bool:
    table, right = OF_NODES.view(-1, 1), []

    def copied(weight: torch.Tensor) -> None:
        with torch.no_grad():
            weight.copy_(table)

    def replaced(weight: torch.Tensor) -> None:
        torch.nn.init.constant_(weight, 1.0)
        weight.data = table

    def written(weight: torch.Tensor) -> None:
        weight.data[:] = table

    for change in (copied, replaced, written, None):
        embedding = pyg_sar.NodeEmbedding(data, 1)
        if change is None:
            embedding.load_state_dict({'weight': table})
        else:
            change(embedding.weight)
        right.append(torch.equal(pyg_sar.gather(embedding()), table))
    return all(right)


def _saved(data: Any, root: str) -> bool:
    path, right = f'{root}.npy', []
    for values in (OF_NODES, pyg_sar.gather(data.x)):
        pyg_sar.save_rows(path, values, data)
        right.append(np.array_equal(np.load(path), values.numpy()))
    return all(right)


PROGRAMS = [
    _set_on_data,
    _written_to,
    _of_seeds,
    _of_links,
    _of_negatives,
    _of_an_embedding,
    _saved,
]


def _run(program: Callable[[Any, str], bool], root: str) -> bool:
    return program(pyg_sar.load_shard(root), root)


@pytest.mark.parametrize('program', PROGRAMS)
@pytest.mark.parametrize('num_ranks', [1, 3])
def test_own_rows_are_taken_by_id(
    root: str, num_ranks: int, program: Callable[[Any, str], bool]
) -> None:
    assert run_as_threads(_run, num_ranks, program, root) == [True] * num_ranks


def _of_one_rank(root: str) -> str:
    data = pyg_sar.load_shard(root)
    data.y = torch.zeros(int((assign(N, 3) == pyg_sar.comm.ranks.rank()).sum()))
    with pytest.raises(ValueError, match=r"rows of the whole graph in 'y', 40 of them") as caught:
        pyg_sar.NeighborLoader(data, [2], batch_size=2)
    return str(caught.value)


def test_rows_of_one_rank_are_refused(root: str) -> None:
    assert all('plain tensor' in message for message in run_as_threads(_of_one_rank, 3, root))


def _parts_in_order(root: str) -> bool:
    data, graph = pyg_sar.load_shard(root), small_graph()
    ids = torch.arange(N)
    right = [torch.equal(data.n_id, ids), torch.equal(data.e_id, torch.arange(E))]
    right += [torch.equal(data[name], graph[name]) for name in ('x', 'y', 'edge_weight')]
    right.append(torch.equal(data.edge_index + 0, graph.edge_index))
    return all(right)


def test_one_process_has_the_order_of_the_graph(root: str) -> None:
    assert _parts_in_order(root)
    assert run_as_threads(_parts_in_order, 1, root) == [True]
