"""Where rows are meant, a plain tensor has those of the whole graph, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_ranks import on_ranks, parts_of
from ranks import run_as_threads
from small_graphs import assign, small_graph

import pyg_sar

N, E = 40, small_graph().num_edges
OF_NODES, OF_EDGES = torch.arange(N) * 10.0, torch.arange(E) * 3


def _set_on_data(data: Any) -> None:
    data.y, data.table = OF_NODES, OF_NODES.numpy()
    data.weight, data.edge_time = OF_EDGES.double(), OF_EDGES
    for b in pyg_sar.NeighborLoader(data, [-1], batch_size=4, weight_attr='weight', shuffle=True):
        assert torch.equal(b.y, b.n_id * 10.0)
        assert torch.equal(torch.as_tensor(b.table), b.n_id * 10.0)
        assert torch.equal(b.edge_time, b.e_id * 3)
    own = pyg_sar.local(data)
    assert torch.equal(own.y, own.n_id * 10.0)


def _written_to(data: Any) -> None:
    data.y = OF_NODES.clone()
    pyg_sar.local(data)
    data.y += 1
    own = pyg_sar.local(data)
    assert torch.equal(own.y, own.n_id * 10.0 + 1)


def _of_seeds(data: Any) -> None:
    data.when = OF_NODES
    mask = torch.arange(N) % 3 > 0
    rows_of_mask = pyg_sar.gather(data.n_id) % 3 > 0
    for nodes, time in ((None, OF_NODES), (mask, OF_NODES[mask]), (rows_of_mask, OF_NODES[mask])):
        options = {'input_time': time + 5, 'time_attr': 'when', 'batch_size': 7}
        for b in pyg_sar.NeighborLoader(data, [2], nodes, **options):
            assert torch.equal(b.seed_time, b.n_id[: b.batch_size] * 10.0 + 5)


def _of_links(data: Any) -> None:
    ids, mask = torch.arange(0, E, 2).flip(0), torch.arange(E) % 3 > 0
    for chosen in (slice(None), ids, mask):
        links = None if chosen == slice(None) else data.edge_index[:, chosen]
        label = torch.arange(E)[chosen]
        for b in pyg_sar.LinkNeighborLoader(data, [2], links, label, batch_size=20):
            ends = small_graph().edge_index[:, b.edge_label]
            assert torch.equal(ends, b.n_id[b.edge_label_index])


def _of_negatives(data: Any) -> None:
    only = torch.zeros(N).index_fill(0, torch.tensor([5, 31]), 1.0)
    asked = {'mode': 'triplet', 'amount': 1, 'dst_weight': only}
    links = data.edge_index[:, small_graph().edge_index[0] < 3]
    for b in pyg_sar.LinkNeighborLoader(data, [1], links, neg_sampling=asked, batch_size=2):
        assert {*b.n_id[b.dst_neg_index].tolist()} <= {5, 31}


def _of_an_embedding(data: Any) -> None:
    table = OF_NODES.view(-1, 1)

    def copied(embedding: Any) -> None:
        with torch.no_grad():
            embedding.weight.copy_(table)

    def replaced(embedding: Any) -> None:
        torch.nn.init.constant_(embedding.weight, 1.0)
        embedding.weight.data = table

    def written(embedding: Any) -> None:
        embedding.weight.data[:] = table

    def loaded(embedding: Any) -> None:
        embedding.load_state_dict({'weight': table})

    for change in (copied, replaced, written, loaded):
        embedding = pyg_sar.NodeEmbedding(data, 1)
        change(embedding)
        assert torch.equal(pyg_sar.gather(embedding()), table)


PROGRAMS = _set_on_data, _written_to, _of_seeds, _of_links, _of_negatives, _of_an_embedding


@pytest.mark.parametrize('program', PROGRAMS)
@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(num_parts=3, by='threads')
def test_own_rows_are_taken_by_id(data: Any, world_size: int, program: Any) -> None:
    program(data)


@pytest.mark.parametrize('world_size', [1, 3])
@on_ranks(num_parts=3, by='threads')
def test_saved_in_the_order_of_the_graph(data: Any, world_size: int, tmp_path: Path) -> None:
    for values in (OF_NODES, pyg_sar.gather(data.x)):
        pyg_sar.save_rows(tmp_path / 'rows.npy', values, data)
        assert np.array_equal(np.load(tmp_path / 'rows.npy'), values.numpy())


@on_ranks(by='threads')
def test_rows_of_one_rank_are_refused(data: Any) -> None:
    data.y = torch.zeros(int((assign(N, 3) == pyg_sar.comm.ranks.rank()).sum()))
    with pytest.raises(ValueError, match=r"rows of the whole graph in 'y', 40 of them") as caught:
        pyg_sar.NeighborLoader(data, [2], batch_size=2)
    assert 'plain tensor' in str(caught.value)


def _in_order(root: Path) -> None:
    data, graph = pyg_sar.load_shard(root), small_graph()
    assert torch.equal(data.n_id, torch.arange(N))
    assert torch.equal(data.e_id, torch.arange(E))
    for name in ('x', 'y', 'edge_weight'):
        assert torch.equal(data[name], graph[name])
    assert torch.equal(data.edge_index + 0, graph.edge_index)


def test_one_process_has_the_order_of_the_graph() -> None:
    _in_order(parts_of(3))
    run_as_threads(_in_order, 1, parts_of(3))
