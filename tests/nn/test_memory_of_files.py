"""Arguments in memory of files, of NumPy and of other processes, and in every layout."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike, assert_same, cut_of, on_ranks
from few import few
from small_graphs import small_graph
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from two_types import two_types

import pyg_sar

NUM_PAIRS = 30


def _loaded(tensor: Tensor, file: Path, *, mmap: bool) -> Tensor:
    torch.save(tensor, file)
    out: Tensor = torch.load(file, mmap=mmap)
    return out


def _mapped(tensor: Tensor, file: Path) -> Tensor:
    np.save(file.with_suffix('.npy'), tensor.numpy())
    return torch.from_numpy(np.load(file.with_suffix('.npy'), mmap_mode='r+'))


KINDS: dict[str, Callable[[Tensor, Path], Tensor]] = {
    'own': lambda tensor, file: tensor.clone(),
    'load': lambda tensor, file: _loaded(tensor, file, mmap=False),
    'load by mmap': lambda tensor, file: _loaded(tensor, file, mmap=True),
    'numpy': lambda tensor, file: torch.from_numpy(tensor.numpy().copy()),
    'memmap': _mapped,
    'shared': lambda tensor, file: tensor.clone().share_memory_(),
    'buffer': lambda tensor, file: torch.frombuffer(
        bytearray(tensor.numpy().tobytes()), dtype=tensor.dtype
    ).view(tensor.shape),
}


class Links(torch.nn.Module):
    """Scores pairs of nodes, and writes to what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 16), pyg.GCNConv(-1, 4, cached=True)
        self.num_calls = 0

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor, scale: Tensor) -> Tensor:
        self.num_calls += 1
        scale[:4] *= 2
        scale.numpy()[4:] += self.num_calls
        z = self.second(self.first(x, edge_index).relu(), edge_index)
        return (z[pairs[0]] * z[pairs[1]]).sum(-1) * scale


def _pairs() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    pairs = torch.randint(40, (2, NUM_PAIRS), generator=draw)
    labels = torch.rand(NUM_PAIRS, generator=draw, dtype=torch.float64)
    return pairs, labels, torch.rand(NUM_PAIRS, generator=draw, dtype=torch.float64)


Given = Callable[[Tensor], Tensor]


def _grads(model: Any) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def _links(data: Any, wrap: Wrap, given: Given) -> Any:
    pairs, labels, scale = map(given, _pairs())
    model = wrap(Links().double())
    found = []
    for _ in range(2):
        model.zero_grad()
        loss = F.mse_loss(model(data.x, data.edge_index, pairs, scale), labels)
        loss.backward()
        found += [loss.detach(), *_grads(model)]
    return [*found, scale.clone()]


class Both(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


_shops = functools.partial(two_types, (20, 15), (5, 7), 90)


def _hetero(data: Any, wrap: Wrap, given: Given) -> Any:
    model = wrap(pyg.to_hetero(Both(), _shops().metadata()).double())
    pairs, labels, _ = map(given, _pairs())
    pairs = pairs % 15
    z = model(data.x_dict, data.edge_index_dict)
    scores = (z['a'][pairs[0]] * z['b'][pairs[1]]).sum(-1)
    F.mse_loss(scores, labels).backward()
    return [scores.detach(), *_grads(model)]


def _restricted(data: Any, wrap: Wrap, given: Given) -> Any:
    model, wanted = wrap(Both().double()), given(torch.arange(0, 40, 3))
    layers = pyg_sar.restrict(data, wanted, 2)
    x = data.x[layers.input_nodes]
    for of_layer, layer in zip((model.first, model.second), layers, strict=True):
        x = of_layer((x, x[layer.dst]), layer.edge_index)
    loss = F.cross_entropy(x, data.y[layers.output_nodes])
    loss.backward()
    return [loss.detach(), *_grads(model)]


def _sampled(data: Any, wrap: Wrap, given: Given) -> Any:
    model, seeds = wrap(Both().double()), given(torch.arange(0, 40, 3))
    found = []
    for batch in pyg_sar.NeighborLoader(data, [3, 2], seeds, batch_size=6, seed=1):
        losses = model(given(batch.x), batch.edge_index)[: batch.batch_size].square().sum(-1)
        model.zero_grad()
        pyg_sar.loader.mean_of_batches(losses).backward()
        found.append(_grads(model))
    return found


def _cached(data: Any, wrap: Wrap, given: Given) -> Any:
    """Kept sums and norms of edges of one's own, and writes to what was kept."""
    model = wrap(
        torch.nn.ModuleList([pyg.GCNConv(-1, 4, cached=True), pyg.SimpleConv('sum')]).double()
    )
    edge_index = given(small_graph().edge_index)
    found = []
    for _ in range(3):
        h = model[1](data.x, edge_index)
        found.append(pyg_sar.gather(h).clone())
        h += 1
        found.append(pyg_sar.gather(model[0](h, edge_index)).detach())
    return found


def _program(data: Any, wrap: Wrap, kind: str, program: Any) -> Any:
    def given(tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor  # has no memory
        return KINDS[kind](tensor, Path(tempfile.mkdtemp(dir=folder)) / 'tensor.pt')

    with tempfile.TemporaryDirectory() as folder:
        return program(data, wrap, given)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(('program', 'graph'), [(_links, small_graph), (_hetero, _shops)])
def test_links_are_those_of_plain_pyg(program: Any, graph: Any, kind: str) -> None:
    options = {'cut': 'random', 'ranks': (1, 3), 'tolerance': 1e-11, 'rtol': 0}
    assert_alike(_program, kind, program, graph=graph, **options)


@pytest.mark.parametrize('kind', [kind for kind in KINDS if kind != 'own'])
@pytest.mark.parametrize('program', [_restricted, _sampled, _cached])
def test_all_memory_is_alike(program: Any, kind: str) -> None:
    root = cut_of(small_graph, 3)
    for size in (1, 3):
        found, want = (on_ranks(_program, size, root, each, program) for each in (kind, 'own'))
        for a, b in zip(found, want, strict=True):
            assert_same(a, b, tolerance=0)


# Features in every layout of memory: columns with a step, transposed, expanded, within others


N, IN, OUT = 23, 6, 4

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    'one of the last dimension': lambda x: x[:, :, 1],
    'every other column': lambda x: x.flatten(1)[:, : 2 * IN : 2],
    'some columns from an odd one on': lambda x: x.flatten(1)[:, 1 : 1 + IN],
    'a transposed copy': lambda x: x[:, :, 0].t().contiguous().t(),
    'one column expanded': lambda x: x[:, :1, 0].expand(-1, IN),
    'a moved dimension': lambda x: x.movedim(0, 1)[:, :, 0].t(),
    'a column split off': lambda x: x.flatten(1).chunk(4, dim=1)[1],
}

LAYERS: dict[str, Callable[[], Any]] = {
    'SAGE': lambda: pyg.SAGEConv(IN, OUT),
    'SAGE max': lambda: pyg.SAGEConv(IN, OUT, aggr='max'),
    'Graph': lambda: pyg.GraphConv(IN, OUT),
    'GCN': lambda: pyg.GCNConv(IN, OUT),
    'GIN': lambda: pyg.GINConv(torch.nn.Linear(IN, OUT)),
    'GAT': lambda: pyg.GATConv(IN, OUT),
    'TAG': lambda: pyg.TAGConv(IN, OUT),
    'SG': lambda: pyg.SGConv(IN, OUT, K=2),
    'Cheb': lambda: pyg.ChebConv(IN, OUT, 3),
    'APPNP': lambda: pyg.APPNP(2, 0.1),
    'Simple': lambda: pyg.SimpleConv(),
    'LG': lambda: pyg.LGConv(),
    'Edge': lambda: pyg.EdgeConv(torch.nn.Linear(2 * IN, OUT)),
    'PNA': lambda: pyg.PNAConv(IN, OUT, ['mean', 'std'], ['identity'], torch.tensor([1, 2, 3])),
    'Transformer': lambda: pyg.TransformerConv(IN, OUT),
    'two layers': lambda: pyg.GraphSAGE(IN, 5, 2, OUT, norm='BatchNorm'),
    'BatchNorm': lambda: _of_x(pyg.BatchNorm(IN)),
    'GraphNorm': lambda: _of_x(pyg.GraphNorm(IN)),
    'LayerNorm': lambda: _of_x(pyg.LayerNorm(IN)),
    'PairNorm': lambda: _of_x(pyg.PairNorm()),
    'InstanceNorm': lambda: _of_x(pyg.InstanceNorm(IN)),
    'Dropout': lambda: _of_x(torch.nn.Dropout(0)),
}


def _of_x(layer: torch.nn.Module) -> torch.nn.Module:
    return pyg.Sequential('x, edge_index', [(layer, 'x -> x')])


def _graph() -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(N, IN, 4, dtype=torch.float64, generator=draw)
    return Data(x=x, edge_index=torch.randint(N - 2, (2, 90), generator=draw), num_nodes=N)


@pytest.mark.parametrize('name', few(LAYERS))
@as_one_process(graph=_graph, cut=[i % 5 % 3 for i in range(N)], ranks=(1, 3), tolerance=1e-11)
def test_features_in_any_layout(data: Any, wrap: Wrap, name: str) -> dict[str, list[Any]]:
    """Outputs twice, as what is known of raw features is used at the second time; gradients."""
    found = {}
    for layout, view in LAYOUTS.items():
        torch.manual_seed(0)
        layer = wrap(LAYERS[name]().double())
        leaf = data.x.detach().clone().requires_grad_()
        outs = [layer(view(x), data.edge_index) for x in (data.x, data.x, leaf)]
        sum(out.square().mean() for out in outs).backward()
        grads = [leaf.grad, *(each.grad for each in layer.parameters())]
        found[layout] = [*(out.detach() for out in outs), *grads]
    return found
