"""What training scripts do around a model, on typed data, against one process of plain PyG."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch.func import functional_call
from torch.nn import BatchNorm1d
from torch_geometric.nn import GATConv, GCNConv, MessagePassing

import pyg_sar

GRAPH = awkward_graph()
Program = Callable[[Any, Any], Any]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__.strip('_')] = function
    return function


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = GATConv(8, 4, heads=2), BatchNorm1d(8)
        self.second, self.head = GCNConv(8, 3), torch.nn.Linear(3, 3)
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        hidden = self.norm(self.first(x, edge_index)).relu()
        return self.head(self.second(hidden, edge_index))


def _loss(model: Any, data: Any) -> Tensor:
    out = model(data.x, data.edge_index)
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def _steps(model: Any, data: Any, num: int = 3, **options: Any) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3, **options)
    for _ in range(num):
        optimizer.zero_grad()
        _loss(model, data).backward()
        optimizer.step()


def _state(*models: torch.nn.Module) -> list[Tensor]:
    tensors = [t for m in models for t in (*m.parameters(), *m.buffers())]
    grads = [p.grad for m in models for p in m.parameters() if p.grad is not None]
    return [t.detach().clone() for t in (*tensors, *grads)]


@program
def _a_generator_in_forward(data: Any, ddp: Any) -> Any:
    generator = torch.Generator().manual_seed(7)

    class Noisy(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = x + torch.rand(x.size(0), 1, generator=generator, dtype=x.dtype)
            keep = torch.bernoulli(torch.full(x.shape, 0.5, dtype=x.dtype), generator=generator)
            x = x * keep / 0.5
            x = x[torch.randperm(x.size(0), generator=generator)]
            return super().forward(x, edge_index)

    model = ddp(Noisy().double())
    _steps(model, data)
    return _state(model), generator.get_state()


@program
def _a_parameter_of_the_loss(data: Any, ddp: Any) -> Any:
    """That forward does not see, with the gradients zeroed before forward."""
    model = ddp(Net().double())
    scale = dict(model.named_parameters())[
        ('module.' if hasattr(model, 'module') else '') + 'scale'
    ]
    temperature = torch.nn.Parameter(torch.ones((), dtype=torch.float64))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1, momentum=0.9)

    def loss_of(out: Tensor) -> Tensor:
        out = out * scale / temperature.exp()
        penalty = sum(p.square().sum() for p in model.parameters())
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask]) + 0.01 * penalty

    for _ in range(3):
        model.zero_grad(set_to_none=False)
        temperature.grad = None
        loss_of(model(data.x, data.edge_index)).backward()
        optimizer.step()
    return _state(model), temperature.detach()


@program
def _complex_convs(data: Any, ddp: Any) -> Any:
    torch.manual_seed(0)
    model = ddp(GCNConv(8, 4).to(torch.cdouble))
    x = torch.complex(data.x, data.x.flip(1)).requires_grad_()
    for _ in range(2):
        model(x, data.edge_index).abs().square().mean().backward()
    return _state(model), x.grad


class ComplexAttention(MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr='add', node_dim=0)
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(8, 4, bias=False).to(torch.cdouble)
        self.att = torch.nn.Parameter(torch.randn(8, dtype=torch.cdouble))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=self.lin(x))

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        score = (torch.cat([x_i, x_j], -1) * self.att).sum(-1, keepdim=True)
        return x_j * score.abs().tanh() * (score / (1 + score.abs()))


@program
def _complex_attention(data: Any, ddp: Any) -> Any:
    model = ddp(ComplexAttention())
    x = torch.complex(data.x, data.x.flip(1)).requires_grad_()
    model(x, data.edge_index).abs().square().mean().backward()
    return _state(model), x.grad


@program
def _rows_of_complex_weights(data: Any, ddp: Any) -> Any:
    torch.manual_seed(0)
    model = ddp(torch.nn.Linear(8, 3).to(torch.cdouble))
    free = torch.randn(3, dtype=torch.cdouble, requires_grad=True)
    out = model(data.x.to(torch.cdouble)) * free
    (out.abs().square().mean() + (out.mean(0) * out[3]).sum().abs()).backward()
    return _state(model), free.grad


@program
def _plain_leaves_around_the_model(data: Any, ddp: Any) -> Any:
    model = ddp(Net().double())
    front, behind = (torch.ones(n, dtype=torch.float64, requires_grad=True) for n in (8, 3))
    for _ in range(2):
        out = model(data.x * front, data.edge_index) * behind + front.sum()
        F.cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
    (data.x * front).square().mean().backward()
    return _state(model), front.grad, behind.grad


@program
def _freezing_norms_by_their_type(data: Any, ddp: Any) -> Any:
    model = ddp(Net().double())
    _steps(model, data, 2)
    frozen = [m for m in model.modules() if isinstance(m, BatchNorm1d)]
    for module in frozen:
        module.eval().requires_grad_(False)
    _steps(model, data, 2)
    return _state(model), len(frozen)


@program
def _no_decay_for_norms_by_their_type(data: Any, ddp: Any) -> Any:
    model = ddp(Net().double())
    norms = {p for m in model.modules() if type(m) is BatchNorm1d for p in m.parameters()}
    groups = [
        {'params': [p for p in model.parameters() if p not in norms], 'weight_decay': 0.1},
        {'params': [p for p in model.parameters() if p in norms], 'weight_decay': 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01, eps=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        _loss(model, data).backward()
        optimizer.step()
    return _state(model), len(norms)


@program
def _compiled(data: Any, ddp: Any) -> Any:
    model = torch.compile(ddp(Net().double()), backend='eager')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        _steps(model, data)
    return _state(model)


@program
def _compiled_before(data: Any, ddp: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = ddp(torch.compile(Net().double(), backend='eager'))
        _steps(model, data)
    return _state(model)


@program
def _fast_weights(data: Any, ddp: Any) -> Any:
    """An inner step by autograd.grad, and the outer one through it."""
    torch.manual_seed(0)
    model = ddp(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    )
    weights = dict(model.named_parameters())
    inner = functional_call(model, weights, (data.x,))
    loss = F.cross_entropy(inner[data.train_mask], data.y[data.train_mask])
    grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    fast = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
    out = functional_call(model, fast, (data.x,))
    F.cross_entropy(out[~data.train_mask], data.y[~data.train_mask]).backward()
    return _state(model)


@program
def _weights_made_by_another_network(data: Any, ddp: Any) -> Any:
    model, code = ddp(Net().double()), torch.ones(2, dtype=torch.float64, requires_grad=True)
    weights = {name: p.detach() * code[0] + code[1].tanh() for name, p in model.named_parameters()}
    out = functional_call(model, weights, (data.x, data.edge_index))
    loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
    (loss + 0.1 * code.square().sum()).backward()
    return code.grad


@program
def _fast_weights_of_the_first_order(data: Any, ddp: Any) -> Any:
    model = ddp(Net().double())
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(2):
        out = functional_call(model, weights, (data.x, data.edge_index))
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        weights = {
            name: (w if g is None else w - 0.1 * g).detach().requires_grad_()
            for (name, w), g in zip(weights.items(), grads, strict=True)
        }
    return list(weights.values()), _state(model)


REFUSED = {'fast_weights': 'torch.autograd.grad'}
MAY_DIFFER = {'no_decay_for_norms_by_their_type': 'norms have classes of their own'}


@pytest.fixture(scope='module')
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    folder = tmp_path_factory.mktemp('habits')
    for count in (1, 3):
        parts = torch.arange(GRAPH.num_nodes) % 7 % count
        pyg_sar.partition_graph(GRAPH, count, folder / str(count), method=parts)
    return {count: str(folder / str(count)) for count in (1, 3)}


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _flat(each)]
    return [pyg_sar.gather(value.detach()) if isinstance(value, Tensor) else value]


def _run(root: str, name: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        data = pyg_sar.load_shard(root)
        return _flat(PROGRAMS[name](data, lambda m: pyg_sar.DistributedDataParallel(m)))


def _refusal(root: str, name: str) -> str:
    try:
        _run(root, name)
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ''


@pytest.mark.parametrize('num_ranks', [1, 3])
@pytest.mark.parametrize('name', PROGRAMS)
def test_is_as_on_one_machine(name: str, num_ranks: int, roots: dict[int, str]) -> None:
    if name in REFUSED and num_ranks > 1:
        for text in run_ranks(_refusal, num_ranks, roots[num_ranks], name):
            assert REFUSED[name] in text
        return
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        want = _flat(PROGRAMS[name](GRAPH.clone(), lambda model: model))
    for found in run_ranks(_run, num_ranks, roots[num_ranks], name):
        assert len(found) == len(want)
        for a, b in zip(found, want, strict=True):
            try:
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
            except AssertionError:
                if name in MAY_DIFFER:
                    pytest.xfail(MAY_DIFFER[name])
                raise


def _drawn(root: str) -> tuple[Tensor, Tensor, Tensor]:
    data, generator = pyg_sar.load_shard(root), torch.Generator().manual_seed(3)
    keep = torch.bernoulli(torch.full_like(data.x, 0.5), generator=generator)
    noise = torch.empty_like(data.x).normal_(generator=generator)
    both = torch.normal(noise, 1.0, generator=generator)
    return pyg_sar.gather(keep), pyg_sar.gather(both), torch.rand(3, generator=generator)


def test_rows_that_a_generator_draws(roots: dict[int, str]) -> None:
    """They differ from rank to rank, and what is drawn later for the whole is equal."""
    results = run_ranks(_drawn, 3, roots[3])
    for found in results:
        for a, b in zip(found, results[0], strict=True):
            assert torch.equal(a, b)
    keep, noise, _ = results[0]
    assert 0.3 < keep.mean() < 0.7
    assert len(noise.unique()) == noise.numel()
