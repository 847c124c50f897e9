"""Nodes without features: what to do is told, and node ids take the place of PyG's None."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch_geometric.nn import FastRGCNConv, GCNConv, RGCNConv, SAGEConv

import pyg_sar
from pyg_sar import SARConv

CONVS: dict[str, Any] = {
    'RGCN': lambda: RGCNConv(40, 4, 3, num_bases=2),
    'FastRGCN': lambda: FastRGCNConv(40, 4, 3),
    'SAGE': lambda: SAGEConv(40, 4),
    'GCN': lambda: GCNConv(40, 4),
}


@pytest.mark.parametrize('name', CONVS)
@on_ranks(2, by='threads')
def test_what_to_do_is_told(data, name):
    types = (data.edge_type,) if 'RGCN' in name else ()
    with pytest.raises(ValueError, match=r'got None.*pyg_sar\.NodeEmbedding') as error:
        SARConv(CONVS[name]())(None, data.edge_index, *types)
    assert ('data.n_id' in str(error.value)) == ('RGCN' in name)


@on_ranks(by='threads')
def test_ids_in_the_place_of_none(data):
    graph, plain = small_graph(), CONVS['RGCN']().double()
    conv = pyg_sar.DistributedDataParallel(copy.deepcopy(plain))
    want = plain(None, graph.edge_index, graph.edge_type)
    want.square().mean().backward()
    out = conv(data.n_id, data.edge_index, data.edge_type)
    out.square().mean().backward()
    assert_close(pyg_sar.gather(out), want)
    for own, p in zip(conv.parameters(), plain.parameters(), strict=True):
        assert_close(own.grad, p.grad, tolerance=1e-10)
