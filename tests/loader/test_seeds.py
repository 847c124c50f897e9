"""Seeds are those of the whole graph, however they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from on_ranks import parts_of
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch_geometric.loader import ClusterData, NeighborLoader

import pyg_sar


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
