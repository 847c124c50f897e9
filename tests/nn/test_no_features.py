"""Nodes without features: what to do is told, and node ids take the place of PyG's None."""

from __future__ import annotations

from typing import Any

import pytest
from alike import Wrap, as_one_process, itself
from on_ranks import on_ranks
from torch_geometric.nn import FastRGCNConv, GCNConv, RGCNConv, SAGEConv

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


@as_one_process(tolerance=1e-12)
def test_ids_in_the_place_of_none(data: Any, wrap: Wrap) -> list[Any]:
    conv = wrap(CONVS['RGCN']().double())
    out = conv(None if wrap is itself else data.n_id, data.edge_index, data.edge_type)
    out.square().mean().backward()
    return [out.detach(), *(p.grad for p in conv.parameters())]
