"""pyg_sar.check: right steps pass, wrong and refused ones are named, and nothing is changed."""

from __future__ import annotations

import copy
import functools
import os
import random
import time
import warnings
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from few import few
from small_graphs import small_graph
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GCN, GCNConv, GraphNorm, HeteroConv, SAGEConv

import pyg_sar
from pyg_sar.checking.one_run import _leaves, _sendable

Pair = namedtuple('Pair', 'loss acc')


@dataclass
class Result:
    loss: Tensor
    acc: float
    count: int


@pytest.fixture
def data() -> Data:
    graph = small_graph(300, 1500)
    graph.x, graph.num_classes = graph.x.float(), 3
    return graph


def _gcn(**options: Any) -> GCN:
    torch.manual_seed(0)
    return GCN(6, 8, 2, 3, **options)


def _loss(model: nn.Module, data: Data) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def _acc(model: nn.Module, data: Data, mask: str = 'train_mask') -> Tensor:
    pred = model(data.x, data.edge_index).argmax(dim=1)
    return (pred == data.y)[data[mask]].float().mean()


def _metrics(model: nn.Module, data: Data) -> dict[str, Any]:
    loss = _loss(model, data)
    return {
        'loss': loss,
        'acc': _acc(model, data),
        'sizes': (data.num_nodes, data.num_edges, data.num_classes, data.x.shape),
        'texts': [f'{loss.item():.3f}', None, True, int(data.train_mask.sum())],
        'pred': model(data.x, data.edge_index).argmax(dim=1),
    }


def _dataclass(model: nn.Module, data: Data) -> Result:
    return Result(_loss(model, data), _acc(model, data).item(), int(data.train_mask.sum()))


def _named_tuple(model: nn.Module, data: Data) -> Pair:
    return Pair(_loss(model, data), _acc(model, data))


def _object(model: nn.Module, data: Data) -> SimpleNamespace:
    result = SimpleNamespace(loss=_loss(model, data), x=np.float64(2), data=data, model=model)
    result.itself = result
    return result


def _class_weights(model: nn.Module, data: Data) -> Tensor:
    weight = 1 / torch.bincount(data.y, minlength=data.num_classes).clamp(min=1).to(data.x.dtype)
    return F.cross_entropy(model(data.x, data.edge_index), data.y, weight=weight)


def _standardised(model: nn.Module, data: Data) -> Tensor:
    data.x = (data.x - data.x.mean(dim=0)) / data.x.std(dim=0)
    return _loss(model, data)


def _gradients_of_its_own(model: nn.Module, data: Data) -> float:
    loss = _loss(model, data)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return loss.item()


def _trains(model: nn.Module, data: Data) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        loss = _loss(model, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    optimizer.zero_grad()
    return losses


def _draws(model: nn.Module, data: Data) -> Tensor:
    x = data.x + torch.randn_like(data.x) + torch.randn(data.num_nodes, 1).to(data.x)
    return model(F.dropout(x), data.edge_index).square().mean()


def _in_float32(model: nn.Module, data: Data) -> Tensor:
    return model(data.x.float(), data.edge_index).square().mean()


RIGHT = [
    _loss,
    _metrics,
    _dataclass,
    _named_tuple,
    _object,
    _class_weights,
    _standardised,
    _gradients_of_its_own,
    _trains,
    _draws,
    _in_float32,
]


@pytest.mark.parametrize('step', few(RIGHT, every=2), ids=lambda f: f.__name__.strip('_'))
def test_right(step: Any, data: Data) -> None:
    pyg_sar.check(step, _gcn(norm='batch_norm', dropout=0.5), data)


MODELS = {
    'wrapped': lambda: pyg_sar.DistributedDataParallel(
        _gcn(norm='batch_norm', dropout=0.5), dropout_seed=1
    ),
    'in DistributedDataParallel': lambda: pyg_sar.DistributedDataParallel(_gcn(norm='batch_norm')),
    'with another norm': lambda: pyg_sar.DistributedDataParallel(_gcn(norm=GraphNorm(8))),
    'lazy': lambda: GAT(-1, 8, 2, 3, dropout=0.3),
    'cached': lambda: _gcn(cached=True),
    'recomputed': lambda: pyg_sar.DistributedDataParallel(
        _gcn(act='elu'), checkpoint_activations=True
    ),
}


@pytest.mark.parametrize('name', MODELS)
def test_models(name: str, data: Data) -> None:
    model = MODELS[name]()
    if name in ('cached', 'lazy'):
        model(data.x, data.edge_index)
    pyg_sar.check(_loss, model, data)


def test_a_step_that_writes_module(data: Data) -> None:
    model = pyg_sar.DistributedDataParallel(_gcn())
    pyg_sar.check(lambda model, data: model.module(data.x, data.edge_index).mean(), model, data)


def test_a_table_of_all_nodes(data: Data) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows, self.conv = nn.Embedding(300, 6), GCNConv(6, 3)

        def forward(self, data: Data) -> Tensor:
            return self.conv(self.rows(data.n_id), data.edge_index)

    pyg_sar.check(lambda model, data: model(data).square().mean(), Table(), data)


@pytest.mark.parametrize('sparse', [False, True])
def test_learned_rows(data: Data, sparse: bool) -> None:
    class Learned(nn.Module):
        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.rows, self.conv = pyg_sar.NodeEmbedding(data, 6, sparse=sparse), GCNConv(6, 3)
            self.scale = scale

        def forward(self, data: Data) -> Tensor:
            own = pyg_sar.local(self.rows()).mean(dim=0)
            return self.conv(self.rows() + (1 - self.scale) * own, data.edge_index)

    def step(model: nn.Module, data: Data) -> Tensor:
        return model(data).square().mean()

    pyg_sar.check(step, Learned(), data)
    with pytest.raises(ValueError, match=r"the gradient of 'rows.weight' differs by"):
        pyg_sar.check(step, Learned(0.5), data)


# Wrong steps


class Centred(nn.Module):
    """Subtracts the mean of this rank's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x - pyg_sar.local(x).mean(0), edge_index)


class AsksForTheClass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.conv(x, edge_index)
        return 2 * out if type(self.conv) is GCNConv else out


def _local_loss(model: nn.Module, data: Data) -> Tensor:
    return _loss(model, data) + pyg_sar.local(model(data.x, data.edge_index)).mean(0).sum()


def _local_float(model: nn.Module, data: Data) -> dict[str, Any]:
    return {'loss': _loss(model, data), 'mean': pyg_sar.local(data.x).mean(0)[0].item()}


def _local_int(model: nn.Module, data: Data) -> Result:
    return Result(_loss(model, data), 1.0, int(pyg_sar.local(data.train_mask).sum()))


def _local_shape(model: nn.Module, data: Data) -> list[Any]:
    return [_loss(model, data), {'x': pyg_sar.local(data.x)}]


def _other_keys(model: nn.Module, data: Data) -> dict[str, Any]:
    return {str(len(pyg_sar.local(data.x))): 1}


def _gradient_of_a_rank(model: nn.Module, data: Data) -> float:
    pyg_sar.local(model(data.x, data.edge_index)).mean().backward()
    return 1.0


def _changes_a_parameter(model: nn.Module, data: Data) -> None:
    with torch.no_grad():
        model.convs[0].bias += pyg_sar.local(data.x).mean()


WRONG = {
    'in the loss': (_local_loss, _gcn, r'the result differs by .*; the gradient of '),
    'in the model': (_loss, Centred, r"the result differs .* the gradient of 'conv.lin.weight'"),
    'by the class': (_loss, AsksForTheClass, r"the result differs .* gradient of 'conv.bias'"),
    'a float': (
        _local_float,
        _gcn,
        r"ranks: \['mean'\] is \S+ on plain PyG, and \S+ on ranks; pyg_sar.local at ",
    ),
    'an int': (
        _local_int,
        _gcn,
        r'ranks: \.count is \d+ on plain PyG, and \d+ on ranks; pyg_sar.local at ',
    ),
    'a shape': (_local_shape, _gcn, r"ranks: \[1\]\['x'\] is torch.float64 \[61, 6\] on plain PyG"),
    'keys': (_other_keys, _gcn, r"ranks: \['61'\] is 1 on plain PyG, and missing on ranks"),
    'a gradient': (_gradient_of_a_rank, _gcn, r"ranks: the gradient of 'convs.0.bias' differs by"),
    'a parameter': (_changes_a_parameter, _gcn, r"ranks: the new 'convs.0.bias' differs by"),
}


@pytest.mark.parametrize('name', WRONG)
def test_wrong(name: str, data: Data) -> None:
    step, make, words = WRONG[name]
    with pytest.raises(ValueError, match=words):
        pyg_sar.check(step, make(), data)


def _refused(model: nn.Module, data: Data) -> Any:
    out = model(data.x, data.edge_index)
    return (out @ out.t()).mean()  # this line


class Refused:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, model: nn.Module, data: Data) -> Any:
        return _refused(model, data) * self.scale


@pytest.mark.parametrize('step', [_refused, functools.partial(_refused), Refused(2.0)])
def test_refused(step: Any, data: Data) -> None:
    with pytest.raises(ValueError, match='not on ranks: ValueError') as error:
        pyg_sar.check(step, _gcn(), data)
    assert f'({__file__}, line ' in str(error.value)
    assert str(error.value).endswith(': return (out @ out.t()).mean()  # this line)')


def _fails(model: nn.Module, data: Data) -> Any:
    return data.x[250]


def _dies(model: nn.Module, data: Data) -> Any:
    os._exit(3)


def _dies_on_ranks(model: nn.Module, data: Data) -> Any:
    if pyg_sar.local(data.x) is not data.x:
        os._exit(4)


def _hangs(model: nn.Module, data: Data) -> Any:
    time.sleep(1000)


def _one_rank_waits(model: nn.Module, data: Data) -> Any:
    if len(pyg_sar.local(data.x)) > data.num_nodes / 2:
        return data.x.mean()
    return data.y.max()


CANNOT = {
    'raises': (_fails, 'fails without pyg_sar: IndexError: .*data.x.250.'),
    'dies': (_dies, r'fails without pyg_sar: its process has died \(exit code 3\)'),
    'dies on ranks': (_dies_on_ranks, r'not on ranks: its process has died \(exit code 4\)'),
    'parts': (_one_rank_waits, 'not on ranks: '),
}


@pytest.mark.parametrize('name', CANNOT)
def test_cannot_run(name: str, data: Data) -> None:
    step, words = CANNOT[name]
    with pytest.raises(ValueError, match=words):
        pyg_sar.check(step, _gcn(), data)


def test_hangs(data: Data) -> None:
    with pytest.raises(ValueError, match='it has not ended after 3 s'):
        pyg_sar.check(_hangs, _gcn(), data, timeout=3)


def test_cuda(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    with pytest.raises(ValueError, match='run it on CPU'):
        pyg_sar.check(_loss, _gcn(), data)


def test_rows_are_no_plain_graph(data: Data, tmp_path: Any) -> None:
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts', method='random')
    with pytest.raises(ValueError, match='must be the plain graph'):
        pyg_sar.check(_loss, _gcn(), pyg_sar.load_shard(tmp_path / 'parts'))


# Nothing of the caller changes


def test_inert(data: Data) -> None:
    model = _gcn(norm='batch_norm', dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters())
    _loss(model, data).backward()
    optimizer.step()
    generator, seen, calls = torch.Generator().manual_seed(3), [], SimpleNamespace(count=0)
    model.register_forward_hook(lambda *_: seen.append('hook'))
    seen.clear()

    def step(model: nn.Module, data: Data) -> Any:
        calls.count += 1
        optimizer.zero_grad()
        mask = torch.rand(data.num_nodes, generator=generator) < 0.5
        data.x = data.x + torch.rand(data.num_nodes, 1).to(data.x)
        loss = F.cross_entropy(model(data.x, data.edge_index)[mask], data.y[mask])
        loss.backward()
        seen.append(loss.item())
        model.new = random.random() + np.random.rand()  # noqa: NPY002
        return loss.item(), len(seen), calls.count

    def state() -> dict[str, Any]:
        modules = list(model.modules())
        everything = [
            model.state_dict(),
            [p.grad for p in model.parameters()],
            optimizer.state_dict(),
            [[name for name in vars(module)] for module in modules],
            [[len(module._forward_hooks), len(module._forward_pre_hooks)] for module in modules],
            [[type(module).__name__, getattr(module, 'p', None)] for module in modules],
            [torch.get_rng_state(), generator.get_state(), random.getstate()],
            [np.random.get_state()[1], torch.get_num_threads()],  # noqa: NPY002
            [str(torch.get_default_dtype()), calls, seen, model.training, warnings.filters],
            [data.to_dict(), dict(os.environ)],
        ]
        leaves = _leaves(copy.deepcopy(everything), '', ())
        return {path: _sendable(leaf) for path, leaf in leaves}

    before, objects = state(), [id(p) for p in model.parameters()]
    pyg_sar.check(step, model, data)
    np.testing.assert_equal(state(), before)
    assert objects == [id(p) for p in model.parameters()]


# Types of nodes


class Hetero(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        keys = [('a', 'to', 'b'), ('b', 'back', 'a')]
        self.conv = HeteroConv(
            {key: SAGEConv((4, 5) if key[0] == 'a' else (5, 4), 3) for key in keys}
        )

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> dict[str, Tensor]:
        return self.conv(x, edges)


def _of_types(model: nn.Module, data: HeteroData) -> Any:
    out = model(data.x_dict, data.edge_index_dict)
    loss = sum(rows.square().mean() for rows in out.values())
    return {'loss': loss, 'out': out, 'nodes': data['a'].num_nodes, 'data': data}


def _of_types_by_part(model: nn.Module, data: HeteroData) -> Any:
    out = model(data.x_dict, data.edge_index_dict)
    return {'a': out['a'].mean(), 'b': pyg_sar.local(out['b']).mean(dim=0)}


def test_types_of_nodes() -> None:
    torch.manual_seed(0)
    data = HeteroData()
    data['a'].x, data['b'].x = torch.randn(150, 4), torch.randn(170, 5)
    ends = torch.stack([torch.randint(150, (600,)), torch.randint(170, (600,))])
    data['a', 'to', 'b'].edge_index, data['b', 'back', 'a'].edge_index = ends, ends.flip(0)
    pyg_sar.check(_of_types, Hetero(), data)
    with pytest.raises(ValueError, match=r"ranks: \['b'\] differs by"):
        pyg_sar.check(_of_types_by_part, Hetero(), data)
