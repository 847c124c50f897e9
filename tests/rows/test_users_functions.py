"""A user's ``torch.autograd.Function`` gets rows, in forward and in backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expressions import expressions
from on_ranks import on_threads
from ranks import run_as_threads
from small_graphs import cut, small_graph
from some_rows import N, X, rows
from started import output
from torch import Tensor
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import pyg_sar
from pyg_sar.rows.patches import ask_for_rows

W = torch.linspace(0, 1, 8, dtype=torch.float64).view(4, 2)


@pytest.fixture(autouse=True)
def _as_load_shard_does() -> None:
    ask_for_rows()


class Square(Function):
    """Saves what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        assert grad.shape == x.shape == (N, 4)
        return 2 * x * grad


def function(value: Callable[[Tensor], Tensor], gradient: Callable[..., Tensor]) -> Any:
    """A Function whose backward gets the gradient, what was given, and what came out."""

    class Made(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            out = value(x)
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return gradient(grad, *ctx.saved_tensors)

    return Made


# Its gradient is no sum over its rows; that of x itself, of length 1; a plain tensor comes out;
# a plain gradient with all rows.
Exp = function(torch.exp, lambda grad, x, out: grad * out / (1 + out.sum()))
Turned = function(lambda x: x, lambda grad, x, out: -grad / grad.norm())
Norm = function(torch.norm, lambda grad, x, out: grad * x / x.norm())
Sum = function(lambda x: x.sum(0), lambda grad, x, out: grad.expand(N, 4))


class Linear(Function):
    """Rows and a plain tensor, each in and out, with a context of its own."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return scale * (x @ weight), (x @ weight).sum(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.scale = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = ctx.scale * grads[0] + grads[1]
        return grad @ weight.t(), x.t() @ grad, None


class Doubled(Function):
    """In place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


LOSSES = """
(Square.apply(x).mean(0) ** 2).sum() + w.sum(); (Exp.apply(x) @ w).square().mean()
(Turned.apply(x) @ w).square().mean(); Norm.apply(x) ** 2 + w.sum()
(Norm.apply(x) * x @ w).square().mean(); Sum.apply(x).square().sum() + w.sum()
(Doubled.apply(1 * x) @ w).square().sum(); sum(y.square().mean() for y in Linear.apply(x, w, 0.5))
Linear.apply(x, weight=w)[0].square().mean(); Linear.apply(2 * x, w)[1].square().mean()
(Exp.apply(Square.apply(x)) @ w).std(); checkpoint(lambda a: (a @ w).square(), x, **LATER).mean()
checkpoint(lambda a, w: (a @ w).square(), x, w, **REENTRANT).mean()
checkpoint(lambda a, w: (a @ w).square().mean(), x, w, **REENTRANT)
"""
LATER, REENTRANT = {'use_reentrant': False}, {'use_reentrant': True}


def _gradients(make: Callable[[Tensor], Any]) -> dict[str, list[Tensor]]:
    found = {}
    for name in expressions(LOSSES):
        x, weight = make(X).requires_grad_(), W.clone().requires_grad_()
        loss, again = eval(name, globals() | {'x': x, 'w': weight, 'checkpoint': checkpoint}), ()
        if 'checkpoint' not in name:
            again = torch.autograd.grad(loss, (x, weight), retain_graph=True)
        loss.backward()
        values = loss.detach(), x.grad, weight.grad, *again
        found[name] = [pyg_sar.gather(each) for each in values]
    return found


@pytest.mark.parametrize('num_ranks', [1, 3, 10, 11])
def test_gradients_are_those_of_the_whole(num_ranks: int) -> None:
    want = _gradients(torch.clone)
    for found in run_as_threads(_gradients, num_ranks, rows):
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


class Wrong(Square):
    """Gives rows as the gradient of a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, grad


@on_threads(3)
def test_rows_are_no_gradient_of_a_plain_tensor() -> None:
    loss = Wrong.apply(rows(), torch.ones(4, dtype=torch.float64).requires_grad_()).sum()
    with pytest.raises(ValueError, match=r"'Wrong\.backward'.*gradient of a plain tensor"):
        loss.backward()


@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_functions_of_plain_tensors_are_left_alone() -> None:
    x = X.clone().requires_grad_()
    loss = torch.compile(lambda a: Square.apply(a).sum(), backend='eager', fullgraph=True)(x)
    loss.backward()
    assert torch.equal(x.grad, 2 * X)
    assert type(Square.apply(x).grad_fn) is Square._backward_cls


EARLY = """
import torch, pyg_sar
from pyg_sar.comm.threads import run_threads

class Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()

early = Unit.apply

def program():
    x = pyg_sar.load_shard('parts').x
    assert type(early(pyg_sar.local(x))) is type(Unit.apply(pyg_sar.local(x))) is torch.Tensor
    assert type(Unit.apply(x)) is type(x) is not torch.Tensor
    try:
        early(x)
    except ValueError as error:
        return str(error)

print(*run_threads(program, 2), sep='\\n')
"""


def test_apply_that_was_kept_before(tmp_path: Path) -> None:
    cut(small_graph(), 2, tmp_path / 'parts')
    lines = output(['python', '-c', EARLY], folder=tmp_path).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.startswith("'Unit.apply' of rows")
        assert 'was kept by another name before load_shard: call Unit.apply(...)' in line
