"""What every rank has of the whole stays equal on all ranks, and what users see of it is whole."""

from __future__ import annotations

import gc
import warnings
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, cut_of
from ddp_model import make_model
from graphs import awkward_graph
from on_ranks import on_ranks
from ranks import run_once
from small_graphs import attempt, small_graph
from three_steps import supervised
from torch import Tensor
from traffic import counted

import pyg_sar
from pyg_sar.comm.errors import PartedError
from pyg_sar.comm.ranks import rank
from pyg_sar.nn import gradients
from pyg_sar.rows import replicated

CUT = [i % 7 % 3 for i in range(60)]


def _loss(model: torch.nn.Module, data: Any) -> Tensor:
    return supervised(model(data.x, data.edge_index), data)


def _raises(error: type[Exception] | None, *words: str) -> Any:
    """An error with these words, in any order; without one none."""
    match = '(?s)' + ''.join(f'(?=.*{each})' for each in words)
    return nullcontext() if error is None else pytest.raises(error, match=match)


@pytest.mark.parametrize(
    ('what', 'error', 'words'),
    [
        ('a parameter', ValueError, ["'head.bias'", 'rank 2', 'backward 6']),
        ('a buffer', PartedError, ["'batch_norm' of rows at", 'rank 2']),
        ('', None, []),
    ],
)
@on_ranks()
def test_numbers_that_part_in_training(data, what, error, words):
    gradients.STEPS_BETWEEN_CHECKS = 4
    model = pyg_sar.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with _raises(error, *words):
        for step in range(9):
            optimizer.zero_grad()
            _loss(model, data).backward()
            optimizer.step()
            if rank() == 2 and step == 4:
                with torch.no_grad():
                    model.head.bias[1] += 1e-6 * (what == 'a parameter')
                    model.norm.running_var[1] += 1e-6 * (what == 'a buffer')


@pytest.mark.parametrize('by', [0, 1e-6])
@on_ranks()
def test_parameters_of_no_parallel_model_that_differ(data, by):
    model = make_model()  # of which nobody has made a parallel one
    with torch.no_grad():
        model.head.weight[0, 0] += by * rank()
    with _raises(PartedError if by else None, "'Parameter' of rows at", 'on rank 0'):
        _loss(model, data).backward()


def _large(root: str) -> list[tuple[str, int]]:
    data = pyg_sar.load_shard(root)
    replicated.LARGE = 100
    noise = torch.ones(data.num_nodes, 6, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(3):
            data.x + noise
        data.x + torch.zeros_like(data.x)
        data.x[:, 0] + torch.ones(data.num_nodes)
    return [(str(each.message), each.lineno) for each in caught if __file__ == each.filename]


def test_a_large_plain_tensor_is_warned_of_once() -> None:
    line = _large.__code__.co_firstlineno + 7
    for caught in run_once(_large, 3, cut_of(small_graph, 3)):
        ((text, where),) = caught
        assert '(40, 6) meets rows' in text
        assert where == line


def _alone(root: str) -> str:
    pyg_sar.DistributedDataParallel(make_model(), timeout=4)
    data = pyg_sar.load_shard(root)
    data.x.mean()

    def program() -> None:
        if rank() == 0:
            print(data.x.std())

    return attempt(program)


def test_a_reduction_of_one_rank_names_its_line() -> None:
    first, *_ = run_once(_alone, 3, cut_of(small_graph, 3), timeout=100, may_die=(1, 2))
    line = _alone.__code__.co_firstlineno + 7
    assert 'rank 0 stopped at a sum over all ranks' in first
    assert first.endswith(f', called at {__file__}:{line}')


@pytest.mark.parametrize('is_odd', [True, False])
@pytest.mark.parametrize('with_gradients', [True, False])
@on_ranks()
def test_evaluations_without_convs(data, is_odd, with_gradients):
    """The next message compares parameters: there is none of their own."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)]
    model = pyg_sar.DistributedDataParallel(torch.nn.Sequential(*layers).double())
    supervised(model(data.x), data).backward()
    if rank() == 1 and is_odd:
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    with counted() as messages, torch.set_grad_enabled(with_gradients):
        out = model.eval()(data.x)
    assert not messages.others
    if rank() == 2:  # one rank looks at more
        model(data.x * 2)
    words = ("'parameters of Sequential' of rows at test_replicated", 'on rank 1', 'the checksum')
    with _raises(PartedError if is_odd else None, *words):
        supervised(out.detach(), data).item()


DTYPES = {'bfloat16': torch.bfloat16, 'float32': torch.float32}


@pytest.mark.parametrize('what', ['nothing', 'a head', 'a conv', *DTYPES])
@on_ranks()
def test_one_number_that_parts_is_told_at_once(data, tmp_path, what):
    dtype = DTYPES.get(what, torch.float64)
    model = pyg_sar.DistributedDataParallel(make_model().to(dtype))
    data.x = data.x.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _loss(model, data).backward()
    optimizer.step()
    weight = model.first.lin_l.weight if what == 'a conv' else model.head.weight
    if rank() == 1 and what != 'nothing':
        with torch.no_grad():
            weight[0, 0] = torch.nextafter(weight[0, 0].float(), torch.tensor(9.0))
            weight[0, 0] += 0.1 * (what in DTYPES)

    def evaluate() -> None:
        with torch.no_grad():
            model.eval()(data.x, data.edge_index)

    def evaluate_with_gradients() -> None:
        model.eval()(data.x, data.edge_index)

    def save() -> None:
        pyg_sar.save_checkpoint(tmp_path, model, optimizer, epoch=1)

    def step() -> None:
        _loss(model.train(), data).backward()

    error = None if what == 'nothing' else ValueError
    evaluations = [(evaluate, 'checksum'), (evaluate_with_gradients, 'checksum')]
    for do, when in ((save, 'at save_checkpoint'), *evaluations, (step, 'at backward 2')):
        with _raises(error, when, 'rank 1', 'optimizer on one rank alone'):
            do()


@as_one_process(graph=awkward_graph, cut=CUT, tolerance=1e-12, rtol=1e-9)
def test_parameters_with_and_without_a_model_in_one_layer(data: Any, wrap: Wrap) -> list[Tensor]:
    """Gradients of a linear layer with a weight and a bias of a model or of nobody."""
    model = wrap(torch.nn.Linear(8, 3).double())
    of_model = list(model.parameters())
    with torch.no_grad():
        for i, p in enumerate(of_model):
            p.copy_(torch.linspace(-1, 1 + i, p.numel()).view(p.shape))
    of_user = [p.detach().clone().requires_grad_() for p in of_model]
    found = []
    for _ in range(2):
        for weight in (of_model[0], of_user[0]):
            for bias in (of_model[1], of_user[1], None):
                loss = F.linear(data.x, weight, bias).square().mean()
                if bias is not None:
                    loss = loss + (data.x[:, :3] * weight[:, 0] + bias).square().mean()
                loss.backward()
                found += [p.grad.clone() for p in (*of_model, *of_user) if p.grad is not None]
        model = None
        gc.collect()  # then without the model
    return found
