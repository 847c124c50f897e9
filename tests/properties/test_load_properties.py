"""Whatever the graph: what ``load_shard`` gives is rows of it, under the same names and types.

With PYG_SAR_EXAMPLES=2000 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cut_graphs import check_once, check_rows, cut
from drawn_graphs import Drawn, examples, graphs
from hypothesis import given
from torch import Tensor
from torch_geometric.data import Data
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.shard.read_shard import read_shard

pytestmark = pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')

RESERVED = {'num_nodes', 'num_nodes_total', 'edge_index', 'n_id', 'e_id'}
FACTS = ('num_classes', 'label_range')  # of labels, beside what was drawn


def _loaded(drawn: Drawn, data: Any, key: Any) -> dict[str, Any]:
    """What a rank holds of a type or relation, but what every shard has; '' is the whole graph."""
    if key == '' and None not in drawn.num_nodes:
        found = data._global_store
    else:
        found = drawn.store(data, key)
    given = {*drawn.extra.get(key, {}), *(drawn.extra.get('', {}) if key is None else {})}
    others = RESERVED | ({*FACTS} - given)
    return {name: value for name, value in found.items() if name not in others}


def _check_attributes(drawn: Drawn, data: Any) -> None:
    """Names, rows, types, and values of the graph, of one rank."""
    if None in drawn.num_nodes:
        attrs, extra = {**drawn.node_attrs[None], **drawn.edge_attrs[None]}, drawn.extra.get('', {})
        found = _loaded(drawn, data, None)
        assert found.keys() == {*attrs, *extra}
        assert {name: found[name] for name in extra} == extra
    else:
        extra = {key: {} for key in ('', *drawn.num_nodes, *drawn.edges)} | drawn.extra
        for key, values in extra.items():
            found = _loaded(drawn, data, key)
            attrs = {**drawn.node_attrs, **drawn.edge_attrs, '': {}}[key]
            assert found.keys() == {*attrs, *values}
            assert {name: found[name] for name in values} == values
    for key in drawn.num_nodes:
        store = drawn.store(data, key)
        assert store['num_nodes'] == store.num_nodes == store['n_id'].numel()
        for name, want in drawn.node_attrs[key].items():
            check_rows(store[name], store['n_id'], want, (key, name))
    for key in drawn.edges:
        store = drawn.store(data, key)
        for name, want in drawn.edge_attrs[key].items():
            check_rows(store[name], store['e_id'], want, (key, name))


def _halo_ids(shards: list[Any], rank: int, drawn: Drawn, key: Any) -> Tensor:
    """Ids of the rows that a rank receives, as the senders pick them."""
    src_key = None if key is None else key[0]
    mine = drawn.store(shards[rank], key).edge_index.handle.shard
    halo = torch.full((mine.num_halo,), -1)
    for number, step in enumerate(mine.steps):
        sender = drawn.store(shards[step.recv_rank], key).edge_index.handle.shard
        sent = sender.steps[number]
        assert sent.send_rank == rank
        assert sent.send_index.numel() == step.recv_rows
        n_id = drawn.store(shards[step.recv_rank], src_key)['n_id']
        start, end = mine.source_range(step.part)
        halo[start - mine.num_own : end - mine.num_own] = n_id[sent.send_index]
    return halo


def _check_edges(drawn: Drawn, shards: list[Any], key: Any) -> None:
    """Every edge once, between the nodes it had, whatever rank its source is on."""
    src_key, dst_key = (None, None) if key is None else (key[0], key[2])
    check_once([drawn.store(data, key)['e_id'] for data in shards], drawn.edges[key].size(1))
    for rank, data in enumerate(shards):
        store, edge_index = drawn.store(data, key), drawn.store(data, key).edge_index
        shard = edge_index.handle.shard
        assert isinstance(edge_index, LocalEdges)
        assert edge_index.handle.is_whole
        assert edge_index.dtype == torch.int64
        assert edge_index.shape == (2, store['e_id'].numel()) == (2, shard.num_edges)
        assert (shard.rank, shard.world_size, shard.num_parts) == (
            *(rank, len(shards)),
            drawn.num_parts,
        )
        assert shard.num_nodes == drawn.num_nodes[src_key]
        n_id, dst_id = drawn.store(data, src_key)['n_id'], drawn.store(data, dst_key)['n_id']
        assert (shard.num_own, shard.num_dst) == (n_id.numel(), dst_id.numel())
        halo = _halo_ids(shards, rank, drawn, key)
        assert halo.unique().numel() == halo.numel()
        src, dst = edge_index.as_subclass(Tensor)
        ends = torch.stack([torch.cat([n_id, halo])[src], dst_id[dst]])
        assert torch.equal(ends, drawn.edges[key][:, store['e_id']])
        read = src[src >= shard.num_own].unique() - shard.num_own
        assert torch.equal(read, torch.arange(halo.numel()))


def _check_loading(drawn: Drawn) -> None:
    with cut(drawn) as root:
        assert verify_partition(root) == []
        for world_size in range(1, drawn.num_parts + 1):
            if drawn.num_parts % world_size:
                with pytest.raises(ValueError, match=r'parts of .* can be dealt'):
                    read_shard(root, 0, world_size)
                continue
            shards = [read_shard(root, rank, world_size) for rank in range(world_size)]
            for key, count in drawn.num_nodes.items():
                check_once([drawn.store(data, key)['n_id'] for data in shards], count)
            for data in shards:
                _check_attributes(drawn, data)
            for key in drawn.edges:
                _check_edges(drawn, shards, key)
        _check_whole(root, drawn)


def _check_whole(root: Path, drawn: Drawn) -> None:
    """Without torch.distributed one process has the whole graph, as PyG's idioms see it."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    assert type(data) is type(drawn.data)
    assert data.num_nodes == sum(drawn.num_nodes.values())
    assert data.num_edges == sum(edges.size(1) for edges in drawn.edges.values())
    if isinstance(data, Data):
        return
    assert data.metadata() == (list(drawn.num_nodes), list(drawn.edges))
    with_x = {key for key, attrs in drawn.node_attrs.items() if 'x' in attrs}
    assert data.collect('x', allow_empty=True).keys() == with_x


@pytest.mark.slow
@examples(15)
@given(graphs())
def test_ranks_hold_rows_of_the_graph(drawn):
    _check_loading(drawn)
