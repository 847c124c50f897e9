"""Normalisations of edges: PyG's own on rows, kept as long as edges and weights stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alike import Wrap, assert_alike, cut_of
from few import few
from ranks import run_as_threads
from small_graphs import small_graph
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric import nn as tg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import pyg_sar
from pyg_sar.rows.rows import plainly


class Scaled(tg.MessagePassing):
    """Writes to what a normalisation gives."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        edge_index, weight = gcn_norm(edge_index, edge_weight, x.size(0), dtype=x.dtype)
        return self.propagate(edge_index, x=x, weight=weight.mul_(2))

    def message(self, x_j: Tensor, weight: Tensor) -> Tensor:
        return weight.view(-1, 1) * x_j


CONVS: dict[str, Callable[[], nn.Module]] = {
    'GCN': lambda: tg.GCNConv(6, 3),
    'GCN improved': lambda: tg.GCNConv(6, 3, improved=True),
    'GCN without loops': lambda: tg.GCNConv(6, 3, add_self_loops=False),
    'GCN against the edges': lambda: tg.GCNConv(6, 3, flow='target_to_source'),
    'ARMA': lambda: tg.ARMAConv(6, 3, 2, 2),
    'TAG': lambda: tg.TAGConv(6, 3, 2),
    'SG': lambda: tg.SGConv(6, 3, 2),
    'SSG': lambda: tg.SSGConv(6, 3, 0.1, 2),
    'APPNP': lambda: tg.APPNP(2, 0.1),
    'MixHop': lambda: tg.MixHopConv(6, 3),
    'LG': lambda: tg.LGConv(),
    'LE': lambda: tg.LEConv(6, 3),
    'Cheb sym': lambda: tg.ChebConv(6, 3, 3),
    'Cheb rw': lambda: tg.ChebConv(6, 3, 3, 'rw'),
    'Cheb': lambda: tg.ChebConv(6, 3, 3, None),
    'written to': Scaled,
}
WEIGHTS = ('none', 'fixed', 'learned', 'learned by all')


def _results(
    data: Data, wrap: Wrap, name: str, weights: str, powers: tuple[int, ...] = (1, 2, 1, 1)
) -> list[Any]:
    """Of forwards with these powers of the weights."""
    conv = CONVS[name]().double()
    is_cheb, model = isinstance(conv, tg.ChebConv), wrap(conv)
    x = data.x.clone().requires_grad_()
    first = data.edge_weight
    if weights == 'learned by all':  # a plain tensor of all edges, equal on all ranks
        first = torch.linspace(0.1, 1, data.edge_index.size(1), dtype=torch.float64)
    found = []
    for power in powers:
        weight = None if weights == 'none' else first.pow(power) if power > 1 else first
        if weights.startswith('learned'):
            weight = weight.detach().clone().requires_grad_()
        edges = () if weight is None else (weight,)
        if is_cheb:
            lambda_max = 2.5 if weights != 'fixed' else None
            edges = (weight, None, lambda_max)
        out = model(x, data.edge_index, *edges)
        out.square().mean().backward()
        found.append(out.detach())
        if weight is not None and weight.requires_grad:
            found.append(weight.grad)
    return [*found, x.grad, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize('name', few(CONVS, every=2))
def test_is_that_of_one_process(name: str) -> None:
    """With all kinds of weights, on all cuts, in turn."""
    number = list(CONVS).index(name)
    for i, weights in enumerate(WEIGHTS, number // 2):
        cut, ranks = (('uneven', (3, 1)), ('empty part', (3,)))[i % 2]
        assert_alike(_results, name, weights, cut=cut, ranks=ranks, tolerance=1e-12)


class Largest(TorchDispatchMode):
    """The sizes of all tensors that operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with plainly():  # rows that autograd has saved
            out = func(*args, **kwargs or {})
        for each in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(each, Tensor):
                self.sizes.update(each.shape)
        return out


NUM_NODES = 301
FORBIDDEN = {NUM_NODES, 3 * NUM_NODES, 4 * NUM_NODES, 5 * NUM_NODES}
"""Of all nodes; of all edges without loops, as they are, and with one more loop at each node."""


def _ring() -> Data:
    """A rank has a third of the edges, and few halo nodes."""
    nodes = torch.arange(NUM_NODES)
    data = small_graph(NUM_NODES, 4 * NUM_NODES - 8)
    edge_index = torch.stack([nodes.repeat(4), torch.cat([nodes + i for i in range(4)])])
    data.edge_index = edge_index % NUM_NODES
    return data


def _sizes(root: str) -> dict[tuple[str, str], set[int]]:
    data, found = pyg_sar.load_shard(root), {}
    for name in ('GCN', 'GCN improved', 'GCN against the edges', 'Cheb', 'Cheb sym', 'Cheb rw'):
        for weights in WEIGHTS[:3]:
            with Largest() as largest:
                _results(data, pyg_sar.DistributedDataParallel, name, weights, (1,))
            found[name, weights] = largest.sizes & FORBIDDEN
    return {key: sizes for key, sizes in found.items() if sizes}


def test_no_rank_has_a_tensor_of_the_whole_graph() -> None:
    root = cut_of(_ring, 3, [i * 3 // NUM_NODES for i in range(NUM_NODES)])
    assert run_as_threads(_sizes, 3, root) == [{}, {}, {}]
