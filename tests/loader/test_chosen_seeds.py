"""Batches of chosen seeds: ``loader(index)``, ``collate_fn`` and ``dataset``, as PyG has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import on_ranks, parts_of
from ranks import run_as_threads
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch_geometric.data import Data
from torch_geometric.loader import ClusterData, NeighborLoader
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.collectives import agree
from pyg_sar.comm.ranks import rank


@pytest.mark.parametrize(('world_size', 'num_parts'), [(3, 3), (2, 4)])
@on_ranks()
def test_outputs_are_those_of_the_whole_graph(data, world_size, num_parts):
    torch.manual_seed(0)
    model, graph = SAGEConv(6, 3).double(), small_graph()
    want = model(graph.x, graph.edge_index)
    loader = pyg_sar.NeighborLoader(data, [-1], data.train_mask, batch_size=2)
    seeds = graph.train_mask.nonzero().view(-1)
    assert list(loader.dataset) == list(range(len(seeds)))
    for chosen in (torch.arange(len(seeds)).flip(0), [], seeds % 2 == 0, [0]):
        places = torch.arange(len(seeds))[chosen] if len(chosen) else torch.arange(0)
        own = places[torch.isin(seeds[places], pyg_sar.local(data.n_id))]
        batch = loader(chosen)
        assert batch.input_id.equal(own)
        assert batch.n_id[: batch.batch_size].equal(seeds[own])
        torch.testing.assert_close(
            model(batch.x, batch.edge_index)[: batch.batch_size], want[seeds[own]]
        )


@on_ranks(3)
def test_an_evaluation_by_calls_covers_every_seed(data):
    loader = pyg_sar.NeighborLoader(data, [-1], ~data.train_mask, transform=_marked)
    seen = []
    for start in range(0, len(loader.dataset), 4):
        batch = loader(loader.dataset[start : start + 4])
        assert batch.is_marked
        seen += batch.n_id[: batch.batch_size].tolist()
    everywhere = sorted(node for each in agree(seen) for node in each)
    assert everywhere == (~small_graph().train_mask).nonzero().view(-1).tolist()
    assert 'is_marked' not in loader.collate_fn([])


def _marked(batch: Data) -> Data:
    batch.is_marked = True
    return batch


@on_ranks(2, 4)
def test_calls_draw_anew_and_leave_epochs_alone(data):
    given = {'num_neighbors': [1, 1], 'shuffle': True, 'batch_size': 2, 'seed': 5}
    alone, called = (pyg_sar.NeighborLoader(data, **given) for _ in range(2))
    drawn = []
    for one, other in zip(alone, called, strict=True):
        drawn.append(called(called.dataset).e_id.tolist())
        assert one.e_id.equal(other.e_id)
    assert len({*map(tuple, drawn)}) > 1
    state = called.state_dict()
    following = called(called.dataset).e_id
    alone.load_state_dict(state)
    assert alone(alone.dataset).e_id.equal(following)


@on_ranks(3)
def test_links_are_chosen_with_their_negatives(data):
    loader = pyg_sar.LinkNeighborLoader(data, [2], batch_size=2, neg_sampling='binary')
    places = [30, 5, 100, 17]
    batch = loader(places)
    num = len(batch.input_id)
    assert sorted(place for own in agree(batch.input_id.tolist()) for place in own) == sorted(
        places
    )
    assert batch.edge_label.tolist() == [1.0] * num + [0.0] * num
    ends = batch.n_id[batch.edge_label_index][:, :num]
    assert ends.equal(small_graph().edge_index[:, batch.input_id])


@on_ranks(3)
def test_places_that_are_none_are_an_error_on_all(data):
    loader = pyg_sar.NeighborLoader(data, [2], data.train_mask)
    for wrong in ([-1], [len(loader.dataset)], [0.5], 'abc', [[0]]):
        raised = attempt(loader, wrong if rank() == 1 else [])
        assert_all_raise([raised], 'ValueError', 'places of')
    assert_all_raise([attempt(loader, [rank()])], 'ValueError', 'index')
    loader([])


@on_ranks(3)
def test_other_attributes_of_pyg_say_why_they_are_not_there(data):
    loader = pyg_sar.NeighborLoader(data, [2])
    assert not hasattr(loader, 'sampler')
    with pytest.raises(AttributeError, match=r"no 'num_workers': batches are made by one thread"):
        _ = loader.num_workers


@pytest.mark.parametrize('make', [lambda d: NeighborLoader(d, [2]), lambda d: ClusterData(d, 2)])
@pytest.mark.parametrize('is_local', [False, True])
def test_loaders_of_pyg_name_what_there_is_instead(make, is_local):
    data = pyg_sar.load_shard(parts_of(1))
    with pytest.raises(ValueError, match=r'of one process .*: use .*(NeighborLoader|full batch)'):
        make(pyg_sar.local(data) if is_local else data)


def _seeds(root: str) -> dict[str, Any]:
    """By how they are given: ids and places of the seeds of this rank."""
    data = pyg_sar.load_shard(root)
    ids = torch.tensor([5, 31, 7, 5, 0])
    mask = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill(0, ids, True)
    given = {'ids': ids, 'list': ids.tolist(), 'mask': mask, 'rows': mask.nonzero().view(-1)}
    given |= {'typed': (data.train_mask).nonzero().view(-1), 'typed mask': data.train_mask}
    out = {}
    for name, nodes in given.items():
        batches = list(pyg_sar.NeighborLoader(data, [2], nodes, batch_size=2))
        n_id = torch.cat([b.n_id[: b.batch_size] for b in batches])
        out[name] = n_id, torch.cat([b.input_id for b in batches])
    return out


@pytest.mark.parametrize('world_size', [1, 3])
def test_seeds_of_the_whole_graph(tmp_path: Path, world_size: int) -> None:
    graph = small_graph()
    root = cut(graph, 3, tmp_path / 'parts')
    found = run_as_threads(_seeds, world_size, str(root))
    train = graph.train_mask.nonzero().view(-1).tolist()
    want = {name: [0, 5, 7, 31] for name in ('mask', 'rows')} | {
        'typed': train,
        'typed mask': train,
    }
    for name, seeds in want.items():
        assert sorted(i for each in found for i in each[name][0].tolist()) == seeds, name
    ids = torch.tensor([5, 31, 7, 5, 0])
    lists = {name: torch.tensor(seeds) for name, seeds in want.items()} | {'ids': ids, 'list': ids}
    for name, seeds in lists.items():
        n_id, places = (torch.cat(pieces) for pieces in zip(*(e[name] for e in found), strict=True))
        assert places.sort().values.tolist() == list(range(len(seeds)))
        assert torch.equal(seeds[places], n_id)
