"""AddRandomWalkPE before a large graph is cut: the numbers of PyG."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import to_undirected

from pyg_sar.partitioner.sources.named_class import transformed

pytestmark = pytest.mark.filterwarnings('ignore')  # of torch, on the sparse matrices of PyG

NUM_NODES = 2_050  # more than PyG computes with a dense matrix; the last five have no edges


def _edges(kind: str) -> Tensor:
    torch.manual_seed(0)
    edges = torch.randint(NUM_NODES - 5, (2, NUM_NODES)).unique(dim=1)
    if kind == 'directed':
        return edges
    edges = to_undirected(edges)
    if kind == 'multi-edges':
        return torch.cat([edges, edges[:, :9], edges[:, :9].flip(0)], dim=1)
    if kind == 'loops':
        return torch.cat([edges, torch.arange(9).repeat(2, 1)], dim=1)
    return edges


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('kind', ['directed', 'undirected', 'multi-edges', 'loops'])
def test_as_in_pyg(kind: str, weighted: bool) -> None:
    edges = _edges(kind)
    weight = 3 * torch.rand(edges.size(1)) if weighted else None
    graph = Data(edge_index=edges, edge_weight=weight, num_nodes=NUM_NODES)
    want = AddRandomWalkPE(5)(copy.copy(graph)).random_walk_pe
    found = transformed(copy.copy(graph), 'AddRandomWalkPE(walk_length=5)').random_walk_pe
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)


def test_beside_the_features() -> None:
    graph = Data(edge_index=_edges('loops'), x=torch.rand(NUM_NODES).double())
    want = AddRandomWalkPE(2, attr_name=None)(copy.copy(graph)).x
    found = transformed(copy.copy(graph), 'AddRandomWalkPE(walk_length=2, attr_name=None)').x
    torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-7)
