"""What rows are: their memory, their gradients, and what leaves them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from on_ranks import on_threads
from ranks import run_as_threads
from some_rows import N, X, rows
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import same_plain

P = 3


@on_threads(P)
def test_the_plain_tensor_of_rows_is_known_by_them() -> None:
    x = rows()
    plain = same_plain(x)
    assert same_plain(x) is plain
    x.add_(1)
    assert torch.equal(plain, pyg_sar.local(x))
    x.data = torch.ones_like(x)
    assert (same_plain(x) == 1).all()
    refs = weakref.ref(x), weakref.ref(plain)
    del x, plain
    gc.disable()  # no cycle holds the memory
    assert [each() for each in refs] == [None, None]
    gc.enable()


def _gradients(make: Callable[[], Any]) -> dict[str, Tensor]:
    """Of rows, of a weight, and what hooks see and make of them."""
    x, hooked = make().requires_grad_(), make().requires_grad_()
    weight = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    seen: list[Any] = []
    y = x @ weight
    y.register_hook(seen.append)
    y.retain_grad()
    hooked.register_hook(lambda grad: seen.append(grad) or 2 * grad)  # type: ignore[func-returns-value]
    hooked.square().sum().backward()
    ((y - y.mean(0)).square().mean() + weight.square().sum()).backward()
    assert all(type(each) is type(x) for each in seen)
    (again,) = torch.autograd.grad((x @ weight).square().sum(), x)
    found = {'x': x.grad, 'weight': weight.grad, 'y': y.grad, 'hooked': hooked.grad, 'again': again}
    found |= {f'seen {i}': each for i, each in enumerate(seen)}
    return {name: pyg_sar.gather(value) for name, value in found.items()}


def test_gradients_are_those_of_one_process() -> None:
    expected = _gradients(X.clone)
    for found in run_as_threads(_gradients, P, rows):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@on_threads(P)
def test_a_plain_tensor_is_one_of_the_whole() -> None:
    x = rows()
    with pytest.raises(ValueError, match="one value on all ranks in 'add' of rows at"):
        x + torch.full((N, 4), float(rank()))
    with pytest.raises(ValueError, match='all 10 rows'):
        x + torch.ones(pyg_sar.local(x).shape)


@on_threads(P)
def test_what_leaves_says_so() -> None:
    x = rows()
    for leave in (x.numpy, x.tolist, lambda: float(x[:, 0].exp()), lambda: bool(x)):
        with pytest.raises(ValueError, match=r'rows of this rank alone: write '):
            leave()
    assert torch.equal(pyg_sar.gather(x), X)
    assert x.shape == X.shape
    assert len(x) == N
