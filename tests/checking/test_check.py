"""Programs as users write them: right, or refused before training with what differs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch import Tensor, nn
from torch_geometric.nn import (
    BatchNorm,
    GATConv,
    GCNConv,
    MessagePassing,
    SAGEConv,
    aggr,
    global_add_pool,
    global_max_pool,
    global_mean_pool,
)
from torch_geometric.nn.models import DeepGraphInfomax
from torch_geometric.utils import dropout_edge, softmax

import pyg_sar
from pyg_sar.checking.first_forward import check_model
from pyg_sar.checking.run import CannotRun

Step = Callable[[Tensor, Tensor], Tensor]


class Net(nn.Module):
    """Two convs with something between them."""

    def __init__(self, step: Step | nn.Module, conv: Callable[..., nn.Module] = SAGEConv) -> None:
        super().__init__()
        self.first, self.second = conv(6, 8), conv(8, 3)
        self.step = step

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        x = self.step(x, edge_index)
        return self.second(x, edge_index)


class Module(nn.Module):
    """A module as a step."""

    def __init__(self, module: nn.Module, call: Callable[[nn.Module, Tensor, Tensor], Tensor]):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.call(self.module, x, edge_index)


class MixesNodes(MessagePassing):
    """A conv whose update looks at all nodes."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(num_in, num_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def update(self, out: Tensor) -> Tensor:
        return out - out.mean(0)


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.size(0), dtype=torch.int64, device=x.device)


def _top_half(x: Tensor) -> Tensor:
    best = x[:, 0].topk(x.size(0) // 2).indices
    return torch.zeros_like(x).index_copy(0, best, x[best])


def _attention(x: Tensor) -> Tensor:
    return (x @ x.t() / 3).softmax(dim=1) @ x


def _classes(x: Tensor) -> Tensor:
    kind = (x[:, 0] > x[:, 1]).long()
    return x * (1 / torch.bincount(kind, minlength=2).clamp(min=1).to(x.dtype))[kind].view(-1, 1)


WRONG: dict[str, tuple[Step | nn.Module, str]] = {
    'mean': (lambda x, e: x - x.mean(dim=0), "'mean' in Net.forward; .* use pyg_sar.global_mean"),
    'mean of columns kept': (lambda x, e: x - x.mean(0, keepdim=True), "'mean'"),
    'sum': (lambda x, e: x + x.sum(dim=0), "'sum' .* use pyg_sar.global_sum"),
    'torch.mean': (lambda x, e: x * torch.mean(x), "'mean'"),
    'std': (lambda x, e: x / (x.std(dim=0) + 1), "'std' .* use pyg_sar.global_std"),
    'var': (lambda x, e: x / (x.var() + 1), "'var'"),
    'norm': (lambda x, e: x / x.norm(dim=0), "'norm'"),
    'F.normalize': (lambda x, e: F.normalize(x, dim=0), "'normalize'"),
    'max': (lambda x, e: x - x.max(dim=0).values, "'max' .* use pyg_sar.global_max"),
    'amax': (lambda x, e: x / x.amax(), "'amax' .* use pyg_sar.global_max"),
    'min': (lambda x, e: x - x.exp().min(), ''),
    'softmax': (lambda x, e: x * x.softmax(dim=0), "'softmax' .* use pyg_sar.global_softmax"),
    'log_softmax': (lambda x, e: x + x.log_softmax(0), "'log_softmax'"),
    'F.softmax': (lambda x, e: x + F.softmax(x[:, :1], dim=0), "'softmax'"),
    'topk': (lambda x, e: _top_half(x), ''),
    'sort': (lambda x, e: x.sort(dim=0).values, "'sort'"),
    'cumsum': (lambda x, e: x.cumsum(0), "'cumsum'"),
    'flip': (lambda x, e: x.flip(0), "'flip'"),
    'roll': (lambda x, e: x.roll(1, 0), "'roll'"),
    'first node': (lambda x, e: x - x[0], "__getitem__|'sub'"),
    'median': (lambda x, e: x - x.median(), "'median'"),
    'quantile': (lambda x, e: x - x.quantile(0.3), "'quantile'"),
    'number of nodes': (lambda x, e: x * 10 / x.size(0), ''),
    'number of edges': (lambda x, e: x * 10 / e.size(1), ''),
    'attention over nodes': (lambda x, e: _attention(x), ''),
    'covariance': (lambda x, e: x @ (x.t() @ x), "'matmul'|'__matmul__'"),
    'class weights': (lambda x, e: _classes(x), ''),
    'F.batch_norm': (
        lambda x, e: F.batch_norm(x, None, None, training=True),
        "'batch_norm' .* use torch.nn.BatchNorm1d",
    ),
    'F.instance_norm': (lambda x, e: F.instance_norm(x.t().unsqueeze(0)).squeeze(0).t(), ''),
    'readout': (lambda x, e: x + global_mean_pool(x, None), "'mean'"),
    'readout by batch': (lambda x, e: x + global_mean_pool(x, _zeros(x)), ''),
    'add pool': (lambda x, e: x + global_add_pool(x, _zeros(x)), ''),
    'max pool': (lambda x, e: x + global_max_pool(x, None), ''),
    'aggregation': (lambda x, e: x + aggr.StdAggregation()(x), ''),
    'softmax of PyG': (lambda x, e: x * softmax(x, _zeros(x)), ''),
    'attention readout': (
        Module(aggr.AttentionalAggregation(nn.Linear(8, 1)), lambda m, x, e: x + m(x)),
        "'step.module",
    ),
    'softmax readout': (
        Module(aggr.SoftmaxAggregation(learn=True), lambda m, x, e: x + m(x, _zeros(x))),
        "'step.module",
    ),
    'Set2Set': (
        Module(aggr.Set2Set(8, 2), lambda m, x, e: x + m(x, _zeros(x))[:, :8]),
        "'step.module",
    ),
    'LSTM': (
        Module(nn.LSTM(8, 8, batch_first=True), lambda m, x, e: m(x.unsqueeze(0))[0].squeeze(0)),
        "'step.module' \\(LSTM\\)|'lstm'",
    ),
    'TransformerEncoder': (
        Module(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            lambda m, x, e: m(x.unsqueeze(0)).squeeze(0),
        ),
        "'step.module",
    ),
    'MultiheadAttention': (
        Module(nn.MultiheadAttention(8, 2), lambda m, x, e: m(x, x, x)[0]),
        "'step.module",
    ),
    'conv over nodes': (
        Module(nn.Conv1d(8, 8, 3, padding=1), lambda m, x, e: m(x.t().unsqueeze(0))[0].t()),
        "'step.module' \\(Conv1d\\)|'conv1d'",
    ),
    'a conv of its own': (
        Module(MixesNodes(8, 8), lambda m, x, e: m(x, e)),
        "'step.module' \\(MixesNodes\\)",
    ),
}

RIGHT: dict[str, Step | nn.Module] = {
    'nothing': lambda x, e: x,
    'global mean': lambda x, e: x - pyg_sar.global_mean(x, dim=0),
    'global mean of all': lambda x, e: x * pyg_sar.global_mean(x),
    'global sum': lambda x, e: x + pyg_sar.global_sum(x, dim=0),
    'global std': lambda x, e: x / (1 + pyg_sar.global_std(x)),
    'global max': lambda x, e: x - pyg_sar.global_max(x),
    'global softmax': lambda x, e: x * pyg_sar.global_softmax(x),
    'global attention': lambda x, e: (
        x + pyg_sar.global_sum(pyg_sar.global_softmax(2 * x) * x, dim=0)
    ),
    'order': lambda x, e: x + pyg_sar.permute_rows(x, e),
    'global readout': lambda x, e: x + pyg_sar.global_mean(x, batch=_zeros(x)),
    'sum over the ranks': lambda x, e: x + pyg_sar.global_sum(x.sum(dim=0)),
    'dropout': lambda x, e: F.dropout(x, 0.5),
    'dropout module': Module(nn.Dropout(0.5), lambda m, x, e: m(x)),
    'noise': lambda x, e: x + torch.randn_like(x),
    'noise by node': lambda x, e: x * torch.rand(x.size(0), 1),
    'noise for all': lambda x, e: x * torch.rand(8),
    'noise in place': lambda x, e: x + torch.empty_like(x).normal_(),
    'bernoulli': lambda x, e: x * torch.bernoulli(torch.full((x.size(0), 1), 0.5)),
    'random ints': lambda x, e: x + torch.randint(3, (x.size(0), 1)),
    'normalised rows': lambda x, e: F.normalize(x),
    'layer norm': Module(nn.LayerNorm(8), lambda m, x, e: m(x)),
    'batch norm': Module(nn.BatchNorm1d(8), lambda m, x, e: m(x)),
    'batch norm of PyG': Module(BatchNorm(8), lambda m, x, e: m(x)),
    'softmax by row': lambda x, e: x.softmax(dim=-1),
    'mean by row': lambda x, e: x - x.mean(dim=1, keepdim=True),
    'MLP': Module(
        nn.Sequential(nn.Linear(8, 9), nn.PReLU(), nn.Linear(9, 8)), lambda m, x, e: m(x)
    ),
    'another conv': Module(GATConv(8, 4, heads=2), lambda m, x, e: m(x, e)),
    'dropped edges': Module(SAGEConv(8, 8), lambda m, x, e: m(x, dropout_edge(e, 0.5)[0])),
    'weights of all': lambda x, e: x * torch.ones(8).cumsum(0).sum(),
}


@pytest.fixture(scope='module')
def part(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The first of two parts."""
    graph = small_graph(200, 900)
    graph.x = graph.x.float()
    return pyg_sar.load_shard(cut(graph, 2, tmp_path_factory.mktemp('check') / 'parts'), 0)


def _checked(step: Step | nn.Module, data: Any) -> str | None:
    torch.manual_seed(0)
    model = pyg_sar.wrap(Net(step))
    before = torch.get_rng_state()
    found = check_model(model, (data.x, data.edge_index), {})
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32
    assert all(p.grad is None for p in model.parameters())
    return found


@pytest.mark.parametrize('name', few(WRONG))
def test_wrong(name: str, part: Any) -> None:
    step, words = WRONG[name]
    found = _checked(step, part)
    assert found is not None
    assert re.match(f'Net does not give.*({words})', found), found


@pytest.mark.parametrize('name', few(RIGHT))
def test_right(name: str, part: Any) -> None:
    assert _checked(RIGHT[name], part) is None


class Embedded(nn.Module):
    """An embedding of the nodes of one rank."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_nodes, 6)
        self.conv = GCNConv(6, 3)

    def forward(self, edge_index: Tensor) -> Tensor:
        return self.conv(self.embedding.weight, edge_index)


def test_an_embedding_of_own_nodes(part: Any) -> None:
    model = pyg_sar.wrap(Embedded(part.num_nodes))
    found = check_model(model, (part.edge_index,), {})
    assert found is not None
    assert f"'embedding.weight' of Embedded has {part.num_nodes} rows" in found


def test_what_cannot_run(part: Any) -> None:
    model = pyg_sar.wrap(Net(lambda x, e: x + x[part.num_nodes - 1]))
    with pytest.raises(CannotRun, match='IndexError'):
        check_model(model, (part.x, part.edge_index), {})


def _train(root: str, is_wrong: bool, check: bool) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    step = WRONG['mean'][0] if is_wrong else RIGHT['global mean']
    model = pyg_sar.DistributedDataParallel(Net(step).double(), check=check)
    model.eval()
    with torch.no_grad():
        model(data.x, data.edge_index)  # no training yet
    model.train()
    return attempt(lambda: model(data.x, data.edge_index).sum().backward())


def test_on_ranks(tmp_path: Path) -> None:
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    assert run_ranks(_train, 3, root, False, True) == ['no error'] * 3
    assert run_ranks(_train, 3, root, True, False) == ['no error'] * 3
    assert_all_raise(run_ranks(_train, 3, root, True, True), 'ValueError', "'mean'", 'check=False')


def _around(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    encoder = pyg_sar.DistributedDataParallel(SAGEConv(6, 8).double(), check=True)
    model = DeepGraphInfomax(
        8, encoder, lambda z, *args: z.mean(dim=0).sigmoid(), lambda x, e: (x.flip(0), e)
    ).double()
    return attempt(lambda: model(data.x, data.edge_index))


def test_what_is_around_a_wrapped_encoder(tmp_path: Path) -> None:
    """It is checked with the encoder in it."""
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    assert_all_raise(run_ranks(_around, 3, root), 'ValueError', 'DeepGraphInfomax')
