"""Values that one pass must get right: dropped out, read per edge, masked, large."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, cut_of, of_rank, on_whole_graph, take_step
from conv_case import make
from conv_cases import CASES
from exact import Values, step
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.nn.linear_in_softmax import SoftmaxUse
from pyg_sar.ops import chunks

TOLERANCE = 1e-10
INF = float('inf')


@pytest.fixture
def root() -> str:
    return cut_of(awkward_graph, 3, 'random')


@contextmanager
def _small_chunks() -> Iterator[pytest.MonkeyPatch]:
    """Every destination's edges lie in several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, 'CHUNK_BYTES', 1)
        patch.setattr(chunks, 'MIN_EDGES', 40)
        yield patch


def _dropped_out(root: str, name: str, dropout: float, *, by_destination: bool) -> Values:
    """Output and gradients of a conv whose weights are dropped out, by the ids of edges."""
    with _small_chunks() as patch:
        if by_destination:
            patch.setattr(SoftmaxUse, 'is_linear', lambda *_: False)
        conv = make(CASES[name])
        conv.dropout = dropout
        model = pyg_sar.DistributedDataParallel(conv, dropout_seed=3)
        out = step(CASES[name], model, pyg_sar.load_shard(root))
        assert ('by destination' in conv.chosen_paths()) == by_destination
        return out


@pytest.mark.parametrize(
    'name', ['TransformerConv: edge features', 'GATv2Conv: 3 heads', 'RGATConv: additive']
)
@pytest.mark.parametrize('world_size', [1, 3])
def test_dropout(root: str, name: str, world_size: int) -> None:
    """As by destination, with the same masks."""
    found, wanted = (
        run_ranks(_dropped_out, world_size, root, name, 0.4, by_destination=other)
        for other in (False, True)
    )
    for own, other in zip(found, wanted, strict=True):
        for key, value in other.items():
            torch.testing.assert_close(own[key], value, rtol=0, atol=TOLERANCE)
    if world_size == 1:
        kept = _dropped_out(root, name, 0.0, by_destination=False)['out']
        assert not torch.allclose(kept, found[0]['out'])


ATTENTIVE = {
    'GAT': lambda: GATConv(8, 4, heads=2, edge_dim=4),
    'Transformer': lambda: TransformerConv(8, 4, heads=2, edge_dim=4),
    'GATv2': lambda: GATv2Conv(8, 4, heads=2, edge_dim=4),
}


def _with_nodes() -> Data:
    graph = awkward_graph()
    graph.node = torch.arange(60)
    return graph


def _weighted(data: Any, wrap: Wrap, name: str, factor: float) -> list[Any]:
    """Output and gradients of a loss of it and the weights of edges into nodes below 30.

    Rows of the nodes from 30 on, which later chunks read, are multiplied by `factor`.
    """
    module = wrap(ATTENTIVE[name]().double())
    x = data.x * torch.where(data.node < 30, 1, factor).view(-1, 1)
    x, edge_attr = x.requires_grad_(), data.edge_attr.clone().requires_grad_()
    with _small_chunks():
        out, (edge_index, alpha) = module(
            x, data.edge_index, edge_attr, return_attention_weights=True
        )
        is_read = data.node[edge_index[1]] < 30
        loss = (out * data.node.view(-1, 1).sin()).sum()
        (loss + (alpha[is_read] ** 2).sum()).backward()
    return [out.detach(), x.grad, [p.grad for p in module.parameters()]]


@pytest.mark.parametrize('name', ATTENTIVE)
@pytest.mark.parametrize('factor', [1.0, 40.0])
def test_gradient_of_the_weights(name: str, factor: float) -> None:
    """The weights that a conv gives per edge take a gradient, on some ranks only.

    With the factor, logits of later chunks are far from those of earlier ones. The third rank
    reads none of its weights.
    """
    cut = [i // 20 for i in range(60)]
    assert_alike(_weighted, name, factor, graph=_with_nodes, cut=cut, by='processes', rtol=0)


class Masked(MessagePassing):
    """A given logit for every edge, beside one from x."""

    def __init__(self, factor: float) -> None:
        super().__init__(aggr='add')
        self.factor = factor

    def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, mask=mask)

    def message(self, x_i: Tensor, x_j: Tensor, mask: Tensor, index: Tensor) -> Tensor:
        logits = (x_i * x_j).sum(-1) * self.factor + mask
        return x_j * softmax(logits, index).view(-1, 1)


def _masked(
    data: Any, wrap: Wrap, factor: float, dtype: torch.dtype, all_of: int | None
) -> list[Any]:
    graph = awkward_graph()
    mask = torch.zeros(graph.num_edges, dtype=dtype)
    if all_of is not None:
        mask[::3] = -INF
        mask[graph.edge_index[1] == all_of] = -INF
    data.x = data.x.to(dtype)
    with _small_chunks():
        return take_step(wrap(Masked(factor)), data, mask, loss=torch.sum)


@pytest.mark.parametrize('all_of', [-1, 5])
@pytest.mark.parametrize('world_size', [1, 3])
def test_masked_edges(all_of: int, world_size: int) -> None:
    """-inf leaves an edge out; a node whose edges all are gets what it gets from PyG."""
    options = {'graph': awkward_graph, 'cut': 'random', 'ranks': (world_size,), 'parts': 3}
    options |= {'by': 'processes', 'rtol': 0, 'equal_nan': True}
    assert_alike(_masked, 1.0, torch.float64, all_of, **options)


@pytest.mark.parametrize('factor', [30.0, 1e4])
def test_large_logits(root: str, factor: float) -> None:
    """In float32, where exp of any of them overflows."""
    exact, plain = (
        on_whole_graph(_masked, awkward_graph, factor, dtype, None)
        for dtype in (torch.float64, torch.float32)
    )
    for name, found in of_rank(_masked, root, (factor, torch.float32, None)).items():
        assert bool(found.isfinite().all())
        # One process is off as well; and the gradient of a logit, rounded, reaches x many times.
        error, plain_error = ((t.double() - exact[name]).abs().max() for t in (found, plain[name]))
        bound = torch.finfo(torch.float32).eps * (1 + factor) * exact[name].abs().max()
        assert error <= 2 * plain_error + 2 * bound
