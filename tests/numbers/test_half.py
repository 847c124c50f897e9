"""Half precision: what autocast and half-precision models give on a cut graph and in plain PyG.

Rounding differs where sums are made block by block, so both are held against float64: the error on
a cut graph may be twice that of plain PyG.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import cut_of
from few import few
from ranks import run_as_threads, run_ranks
from rows_by_hand import as_rows, sharding_of
from torch import Tensor
from torch.nn import BatchNorm1d
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing, conv, norm
from torch_geometric.utils import stochastic_blockmodel_graph

import pyg_sar

NUM_FEATURES, NUM_EDGE_FEATURES, HIDDEN, NUM_CLASSES = 16, 4, 16, 4


class TwoLayers(torch.nn.Module):
    """A conv, a norm, an activation without kinks, a conv of fewer columns."""

    def __init__(self, make: Callable[[int, int], Any], between: Any, edge: str = '') -> None:
        super().__init__()
        self.first, self.second = make(NUM_FEATURES, HIDDEN), make(HIDDEN, NUM_CLASSES)
        self.norm, self.edge = between, edge

    def forward(self, data: Data, x: Tensor, edge: Tensor | None) -> Tensor:
        kwargs = {} if edge is None else {self.edge: edge}
        x = self.norm(self.first(x, data.edge_index, **kwargs)).tanh()
        return self.second(x, data.edge_index, **kwargs)


def _mlp(num_in: int, num_out: int) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(num_in, 8), torch.nn.Tanh(), torch.nn.Linear(8, num_out)
    )


E = NUM_EDGE_FEATURES
MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    'linear': lambda: TwoLayers(conv.SAGEConv, BatchNorm1d(HIDDEN)),
    'normalised': lambda: TwoLayers(conv.GCNConv, norm.GraphNorm(HIDDEN)),
    'weighted': lambda: TwoLayers(conv.GCNConv, norm.BatchNorm(HIDDEN), 'edge_weight'),
    'attention': lambda: TwoLayers(
        lambda i, o: conv.GATConv(i, o // 4, heads=4, edge_dim=E),
        norm.LayerNorm(HIDDEN),
        'edge_attr',
    ),
    'attention v2': lambda: TwoLayers(
        partial(conv.GATv2Conv, edge_dim=E), norm.PairNorm(), 'edge_attr'
    ),
    'softmax in one pass': lambda: TwoLayers(
        partial(conv.TransformerConv, edge_dim=E), norm.InstanceNorm(HIDDEN), 'edge_attr'
    ),
    'edge network': lambda: TwoLayers(
        lambda i, o: conv.NNConv(i, o, _mlp(E, i * o), aggr='mean'),
        norm.MeanSubtractionNorm(),
        'edge_attr',
    ),
    'edge features': lambda: TwoLayers(
        lambda i, o: conv.GINEConv(_mlp(i, o), edge_dim=E),
        norm.DiffGroupNorm(HIDDEN, 2),
        'edge_attr',
    ),
    'several': lambda: TwoLayers(
        partial(conv.SAGEConv, aggr=['max', 'mean', 'std']), BatchNorm1d(HIDDEN)
    ),
    'median': lambda: TwoLayers(partial(conv.SAGEConv, aggr='median'), BatchNorm1d(HIDDEN)),
}
MODES = [
    'sequential',
    pytest.param('sequential_no_remat', marks=pytest.mark.bench),
    pytest.param('one_shot', marks=pytest.mark.bench),
]


def half_graph() -> Data:
    """96 nodes in four communities that carry the labels."""
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    probabilities = torch.full((4, 4), 0.02) + 0.3 * torch.eye(4)
    edge_index = stochastic_blockmodel_graph([24] * 4, probabilities, directed=False)
    y = torch.arange(96) // 24
    num_edges = edge_index.size(1)
    edge_index = edge_index[:, torch.argsort(edge_index[1] * 96 + edge_index[0])]
    return Data(
        x=torch.randn(96, NUM_FEATURES, generator=generator) + 0.7 * F.one_hot(y, NUM_FEATURES),
        edge_index=edge_index,
        edge_attr=torch.randn(num_edges, E, generator=generator),
        edge_weight=torch.rand(num_edges, generator=generator) + 0.5,
        y=y,
        train_mask=torch.rand(96, generator=generator) < 0.5,
    )


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(3)
    return MODELS[name]()


def _in(dtype: torch.dtype, kind: str) -> Any:
    is_cast = kind == 'autocast' and dtype != torch.float64
    return torch.autocast('cpu', dtype) if is_cast else contextlib.nullcontext()


def _pass(model: torch.nn.Module, data: Data, dtype: torch.dtype, kind: str) -> dict[str, Tensor]:
    """Output and gradients; under autocast parameters and inputs are float32."""
    of_model = torch.float32 if kind == 'autocast' and dtype != torch.float64 else dtype
    inner = getattr(model.to(of_model), 'module', model)
    x = data.x.to(of_model).requires_grad_()
    edge = data[inner.edge].to(of_model).requires_grad_() if inner.edge else None
    with _in(dtype, kind):
        out = model(data, x, edge)
    factors = torch.randn(96, NUM_CLASSES, generator=torch.Generator().manual_seed(5))
    (out * factors.to(out.dtype)).sum().backward()
    found = {'out': out.detach(), 'x': x.grad} | ({} if edge is None else {'edge': edge.grad})
    found = {key: pyg_sar.gather(value) for key, value in found.items()}
    return found | {key: p.grad for key, p in inner.named_parameters()}


def _on_rank(name: str, root: str, dtype: torch.dtype, kind: str, mode: str) -> Any:
    model = pyg_sar.DistributedDataParallel(_model(name), mode=mode)
    return _pass(model, pyg_sar.load_shard(root), dtype, kind)


def _root(num_parts: int = 2) -> str:
    return cut_of(half_graph, num_parts, 'metis')


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', MODELS)
def test_autocast(name: str, mode: str) -> None:
    """Parameters and their gradients are float32."""
    _compare(name, torch.bfloat16, 'autocast', mode)


@pytest.mark.parametrize('name', few(MODELS))
@pytest.mark.parametrize(
    'dtype', [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.bench)]
)
def test_half_precision_models(name: str, dtype: torch.dtype) -> None:
    _compare(name, dtype, 'model')


def _compare(name: str, dtype: torch.dtype, kind: str, mode: str = 'sequential') -> None:
    _check(name, run_ranks(_on_rank, 2, name, _root(), dtype, kind, mode), dtype, kind)


def _check(name: str, answers: list[Any], dtype: torch.dtype, kind: str) -> None:
    exact, plain = (_pass(_model(name), half_graph(), d, kind) for d in (torch.float64, dtype))
    found = answers[0]
    assert {k: v.dtype for k, v in found.items()} == {k: v.dtype for k, v in plain.items()}
    allowed, largest = torch.finfo(dtype).eps, max(e.norm() for e in exact.values())
    if name == 'median':  # of other rows where rounding changes which is in the middle
        exact = {'out': exact['out']}
    for key, e in exact.items():
        error, of_plain = ((t[key].double() - e).norm() for t in (found, plain))
        # A bias before a norm has no gradient: there is rounding only, of the other gradients.
        scale = e.norm() if e.norm() > 1e-6 * largest else largest
        assert error <= 2 * of_plain + allowed * scale, (key, error, of_plain, scale)


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('name', ['linear', 'weighted', 'attention', 'edge features'])
def test_what_is_computed_again_has_the_same_bits(name: str, world_size: int) -> None:
    """GraphSAGE, GCN, GAT and GINE: backward runs outside of autocast."""
    arguments = name, _root(3), torch.bfloat16, 'autocast'
    expected = run_as_threads(_on_rank, world_size, *arguments, 'sequential_no_remat')
    _check(name, expected, *arguments[2:])
    found = run_as_threads(_on_rank, world_size, *arguments, 'sequential')
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _cancelled(on_ranks: bool) -> Tensor:
    """The gradients of all rows, summed: zero but for rounding."""
    generator = torch.Generator().manual_seed(9)
    x, grad = (torch.randn(4000, 32, generator=generator) for _ in range(2))
    x, grad = (2 * x + 5).bfloat16(), (grad + 1).bfloat16()
    if on_ranks:
        sharding = sharding_of([1500, 2500])
        x, grad = as_rows(x, sharding), as_rows(grad, sharding)
    x.requires_grad_()
    (torch.nn.BatchNorm1d(32)(x) * grad).float().sum().backward()
    return pyg_sar.gather(x.grad).double().sum(0)


def test_batch_norm_rounds_once() -> None:
    """What the statistics add to a gradient is the same for all rows: its rounding adds up."""
    plain = _cancelled(False).norm()
    for found in run_as_threads(_cancelled, 2, True):
        assert 0 < found.norm() <= 2 * plain


class OwnMessage(MessagePassing):
    """A learnable map of every message, not of every node."""

    def __init__(self) -> None:
        super().__init__(aggr='sum')
        self.weight = torch.nn.Parameter(torch.randn(NUM_FEATURES, 4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        out = (x_j @ self.weight).tanh()
        _note(out.dtype)
        return out


DTYPES: list[torch.dtype] = []
_note = DTYPES.append  # a message that is seen to write there gets all edges at once


def test_a_message_is_replayed_in_the_mode_of_forward() -> None:
    data = pyg_sar.load_shard(_root())
    torch.manual_seed(3)
    model = pyg_sar.DistributedDataParallel(OwnMessage())
    model(data.x, data.edge_index).square().sum().backward()
    expected, model.weight.grad = model.weight.grad, None
    loss = model(data.x, data.edge_index).square().sum()
    with torch.autocast('cpu', torch.bfloat16):
        loss.backward()
    torch.testing.assert_close(model.weight.grad, expected, rtol=0, atol=0)


def test_a_message_is_replayed_in_the_dtype_of_forward() -> None:
    data = pyg_sar.load_shard(_root())
    model = pyg_sar.DistributedDataParallel(OwnMessage())
    DTYPES.clear()
    with torch.autocast('cpu', torch.bfloat16):
        loss = model(data.x, data.edge_index).float().square().sum()
    of_forward = list(DTYPES)
    DTYPES.clear()
    loss.backward()
    assert {*DTYPES} == {*of_forward} == {torch.bfloat16}


@pytest.mark.parametrize('make', [conv.GATConv, conv.GATv2Conv])
def test_narrow_rows_are_weighted_under_autocast(make: Any) -> None:
    """Their weights are float32: no tensor of edges x channels is made, as in float32."""
    data = pyg_sar.load_shard(_root())
    layer = pyg_sar.SARConv(make(NUM_FEATURES, 4, heads=4))
    with torch.autocast('cpu', torch.bfloat16):
        layer(data.x, data.edge_index)
    assert 'learned values' in str(layer.chosen_paths())
