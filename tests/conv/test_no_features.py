"""Nodes without features: what to do is told, and node ids take the place of PyG's None."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import assemble, assert_all_raise, assert_close, attempt, cut, small_graph
from torch_geometric.nn import FastRGCNConv, GCNConv, RGCNConv, SAGEConv

import pyg_sar
from pyg_sar import SARConv

CONVS: dict[str, Any] = {
    'RGCN': lambda: RGCNConv(40, 4, 3, num_bases=2),
    'FastRGCN': lambda: FastRGCNConv(40, 4, 3),
    'SAGE': lambda: SAGEConv(40, 4),
    'GCN': lambda: GCNConv(40, 4),
}


def _without(root: str, name: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    types = (data.edge_type,) if 'RGCN' in name else ()
    return attempt(SARConv(CONVS[name]()), None, data.edge_index, *types)


@pytest.mark.parametrize('name', CONVS)
def test_what_to_do_is_told(tmp_path, name):
    root = cut(small_graph(), 2, tmp_path / 'parts')
    found = run_as_threads(_without, 2, str(root), name)
    words = ['(got None): nodes without features get rows of their own by pyg_sar.NodeEmbedding']
    assert_all_raise(found, 'ValueError', *words, *(['data.n_id'] if 'RGCN' in name else []))


def _by_ids(root: str, name: str) -> Any:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    torch.manual_seed(0)
    conv = pyg_sar.DistributedDataParallel(CONVS[name]().double())
    out = conv(data.n_id, data.edge_index, data.edge_type)
    pyg_sar.over_all_nodes.global_sum(out.square(), dim=0).sum().backward()
    return data.n_id, out.detach(), [p.grad for p in conv.parameters()]


def test_ids_in_the_place_of_none(tmp_path):
    name = 'RGCN'
    graph = small_graph()
    torch.manual_seed(0)
    conv = CONVS[name]().double()
    want = conv(None, graph.edge_index, graph.edge_type)
    want.square().sum().backward()
    found = run_as_threads(_by_ids, 3, str(cut(graph, 3, tmp_path / 'parts')), name)
    assert_close(assemble([(ids, out) for ids, out, _ in found], 40), want.detach())
    for _, _, grads in found:
        for grad, p in zip(grads, conv.parameters(), strict=True):
            assert_close(grad, p.grad, tolerance=1e-10)
