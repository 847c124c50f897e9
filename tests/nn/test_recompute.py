"""Activations computed again in backward: the same bits, and less that is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric import nn as pyg

import pyg_sar
from pyg_sar.monitor import recipes
from pyg_sar.nn.recompute import recorder
from pyg_sar.nn.recompute.recorder import recompute_activations_of, recomputed_activations

NUM_ROWS, NUM_COLUMNS = 50, 8

STEPS: dict[str, Callable[[], torch.nn.Module]] = {
    'relu': torch.nn.ReLU,
    'relu in place': lambda: torch.nn.ReLU(inplace=True),
    'elu': torch.nn.ELU,
    'prelu': lambda: torch.nn.PReLU(NUM_COLUMNS),
    'tanh': torch.nn.Tanh,
    'dropout': lambda: torch.nn.Dropout(0.4),
    'dropout of all': lambda: torch.nn.Dropout(1.0),
    'dropout in place': lambda: torch.nn.Dropout(0.4, inplace=True),
    'batch norm': lambda: torch.nn.BatchNorm1d(NUM_COLUMNS),
    'layer norm': lambda: torch.nn.LayerNorm(NUM_COLUMNS),
    'graph norm': lambda: pyg.GraphNorm(NUM_COLUMNS),
    'instance norm': lambda: pyg.InstanceNorm(NUM_COLUMNS, affine=True),
}


class _Chain(torch.nn.Module):
    """Linear layers with steps between them, and one result that is used twice."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.lins = torch.nn.ModuleList(torch.nn.Linear(NUM_COLUMNS, NUM_COLUMNS) for _ in range(4))
        self.steps = torch.nn.ModuleList(
            torch.nn.Sequential(*(STEPS[name]() for name in names)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        hidden = []
        for lin, steps in zip(self.lins[:3], self.steps, strict=True):
            x = steps(lin(x))
            hidden.append(x)
        return self.lins[3](x + hidden[0])


def _train(model: torch.nn.Module, x: Tensor, context: Any) -> list[Tensor]:
    """Output, all gradients and all buffers of one step."""
    torch.manual_seed(3)
    model.zero_grad()
    x = x.clone().requires_grad_()
    with context:
        out = model(x)
    after_forward = torch.rand(1)
    out.square().sum().backward()
    assert x.grad is not None
    grads = [p.grad for p in model.parameters()]
    assert all(grad is not None for grad in grads)
    return [out.detach(), x.grad, *grads, *model.buffers(), after_forward, torch.rand(1)]


def _assert_same_bits(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize('training', [True, False])
@pytest.mark.parametrize(
    'names',
    [*([name] for name in STEPS), ['batch norm', 'relu', 'dropout'], ['graph norm', 'elu'] * 2],
    ids=', '.join,
)
def test_same_bits(names: list[str], training: bool) -> None:
    x = torch.randn(NUM_ROWS, NUM_COLUMNS, dtype=torch.float64)
    answers = []
    for context in (nullcontext(), recomputed_activations()):
        torch.manual_seed(0)
        model = _Chain(names).double().train(training)
        answers.append(_train(model, x, context))
    _assert_same_bits(answers[1], answers[0])


@contextmanager
def _kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collects what is packed."""
    packed: list[Any] = []
    pack = recorder._Recorder.pack

    def collect(self: Any, tensor: Tensor) -> Any:
        packed.append(pack(self, tensor))
        return packed[-1]

    with monkeypatch.context() as patch:
        patch.setattr(recorder._Recorder, 'pack', collect)
        yield packed


def _matrices(packed: list[Any], num_rows: int = NUM_ROWS) -> set[int]:
    """Memory of the different ``[num_rows, NUM_COLUMNS]`` tensors that are reachable."""
    found = set()
    todo = [saved.source for saved in packed]
    while todo:
        source = todo.pop()
        if isinstance(source, recorder._Recipe):
            todo += [i for i in source.inputs if i is not None]
        elif source.tensor.shape == (num_rows, NUM_COLUMNS):
            found.add(source.tensor.data_ptr())
    return found


def _kept_of_rows(root: str, names: list[str]) -> int:
    data = pyg_sar.load_shard(root)
    model = _Chain(names).double()
    with pytest.MonkeyPatch.context() as patch, _kept(patch) as packed:
        with recomputed_activations():
            out = model(data.x)
        found = len(_matrices(packed, len(pyg_sar.local(out))))
        out.sum().backward()
    return found


@pytest.mark.parametrize('names', [['batch norm', 'relu', 'dropout'], ['layer norm', 'elu']])
def test_of_rows_as_much_is_kept(names: list[str], tmp_path: Path) -> None:
    """On three ranks and on one: see the test above."""
    for num_ranks in (1, 3):
        root = tmp_path / str(num_ranks)
        pyg_sar.partition_graph(awkward_graph(60), num_ranks, root, method='random')
        assert run_ranks(_kept_of_rows, num_ranks, str(root), names) == [5] * num_ranks


def test_a_sum_of_two_matrices_is_kept_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeping what it follows from would take twice the memory."""
    a, b = (torch.randn(NUM_ROWS, NUM_COLUMNS, requires_grad=True) for _ in range(2))
    with _kept(monkeypatch) as packed, recomputed_activations():
        total = a * 2 + b * 2
        total.sigmoid().sum().backward()
    assert len(_matrices(packed)) == 1


def test_memory_that_is_used_again_is_not_mistaken() -> None:
    lin = torch.nn.Linear(NUM_COLUMNS, NUM_COLUMNS)
    x = torch.randn(NUM_ROWS, NUM_COLUMNS)
    addresses = set()
    with recomputed_activations():
        for _ in range(20):
            gone = lin(x).relu()
            addresses.add(gone.data_ptr())
            del gone
            y = lin(x).detach().requires_grad_()
            addresses.add(y.data_ptr())
            (y.pow(2)).sum().backward()
            assert y.grad is not None
            assert torch.equal(y.grad, 2 * y.detach())
    assert len(addresses) < 40  # some were the same


def test_a_change_in_place_is_an_error() -> None:
    lin = torch.nn.Linear(NUM_COLUMNS, NUM_COLUMNS)
    with recomputed_activations():
        before = lin(torch.randn(NUM_ROWS, NUM_COLUMNS))
        out = lin(before.relu())
    with torch.no_grad():
        before.mul_(2)
    with pytest.raises(RuntimeError, match='inplace'):
        out.sum().backward()


def test_backward_twice() -> None:
    model = _Chain(['batch norm', 'relu', 'dropout'])
    x = torch.randn(NUM_ROWS, NUM_COLUMNS, requires_grad=True)
    with recomputed_activations():
        out = model(x).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)
    second = torch.autograd.grad(out, x)
    assert torch.equal(first[0], second[0])


def test_a_forward_that_fails_leaves_nothing() -> None:
    class Fails(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise KeyError('no')

    model = Fails()
    recompute_activations_of(model)
    with pytest.raises(KeyError):
        model(torch.ones(1))
    assert recipes.recorder.value is None
    y = torch.ones(3, requires_grad=True)
    assert isinstance(y.relu().grad_fn._saved_result, Tensor)  # type: ignore[union-attr]
    assert F.relu(y).grad_fn is not None


class _Net(torch.nn.Module):
    def __init__(self, conv: Callable[[int, int], torch.nn.Module]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([conv(6, 8), conv(8, 8), conv(8, 3)])
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm1d(8), pyg.GraphNorm(8)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = F.dropout(F.elu(norm(conv(x, edge_index))), 0.3, self.training)
        return self.convs[-1](x, edge_index)


_CONVS: dict[str, Callable[[int, int], torch.nn.Module]] = {
    'SAGE': pyg.SAGEConv,
    'GAT': lambda i, o: pyg.GATConv(i, o, heads=2, concat=False),
    'Transformer': lambda i, o: pyg.TransformerConv(i, o, dropout=0.2),
}


def _step_on_ranks(root: str, name: str, mode: Any, again: bool) -> list[Tensor]:
    torch.manual_seed(1)
    data = pyg_sar.load_shard(root)
    net = _Net(_CONVS[name]).double()
    model = pyg_sar.DistributedDataParallel(net, mode=mode, checkpoint_activations=again)
    torch.manual_seed(2)
    out = model(data.x, data.edge_index)
    out.square().sum(dim=1).mean().backward()
    return [pyg_sar.local(out.detach()), *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize('mode', few(['sequential', 'one_shot']))
@pytest.mark.parametrize('name', few(_CONVS))
def test_same_bits_on_ranks(name: str, mode: str, tmp_path: Path) -> None:
    graph = awkward_graph(60)
    graph.x = graph.x[:, :6]
    pyg_sar.partition_graph(graph, 3, tmp_path / 'parts', method=1 + torch.arange(60) % 2)
    plain = run_ranks(_step_on_ranks, 3, str(tmp_path / 'parts'), name, mode, False)
    again = run_ranks(_step_on_ranks, 3, str(tmp_path / 'parts'), name, mode, True)
    for found, expected in zip(again, plain, strict=True):
        _assert_same_bits(found, expected)


def test_a_conv_by_itself_is_refused() -> None:
    with pytest.raises(ValueError, match='checkpoint_activations'):
        pyg_sar.DistributedDataParallel(pyg.SAGEConv(2, 2), checkpoint_activations=True)
