"""Cases of functions that torch's op_db does not have, or not with rows where users have them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from expressions import expressions
from op_run import Case
from torch import Tensor


def _case(function: Any, *args: Any, **kwargs: Any) -> Case:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = function.__name__
    return Case(call, args, kwargs)


class _Noted:
    """A module or class of torch whose functions give a case instead of being called."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Callable[..., Case]:
        return lambda *args, **kwargs: _case(getattr(self._owner, name), *args, **kwargs)


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, *rest: Any) -> Any:
    """A batch norm, and the running statistics that it has updated."""
    mean, var = mean.detach().clone(), var.detach().clone()
    return F.batch_norm(x, mean, var, *rest), mean, var


def multi_head_attention_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, *weights: Tensor
) -> Any:
    in_weight, in_bias, out_weight, out_bias = weights
    options = (None, None, False, 0.0, out_weight, out_bias)
    return F.multi_head_attention_forward(
        q, k, v, 4, 2, in_weight, in_bias, *options, key_padding_mask=mask
    )


def solve(a: Tensor, b: Tensor) -> Any:
    """An equation whose right-hand side is rows."""
    return torch.linalg.solve(a, b)


def solve_triangular(a: Tensor, b: Tensor) -> Any:
    return torch.linalg.solve_triangular(a, b, upper=False)


def n(*shape: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, dtype=torch.float64)


def _names() -> dict[str, Any]:
    layer = torch.nn.MultiheadAttention(4, 2, dtype=torch.float64)
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[:, -1] = True
    functions = (batch_norm, multi_head_attention_forward, solve, solve_triangular)
    return {
        **{f.__name__: lambda *args, f=f: _case(f, *args) for f in functions},
        **{'n': n, 'F': _Noted(F), 'torch': _Noted(torch), 'Tensor': _Noted(Tensor)},
        'stats': [n(4), n(4).exp(), n(4), n(4)],
        'weights': [each.detach().clone() for each in layer.parameters()],
        'mask': mask,
        'uniform': torch.rand(6, 5, dtype=torch.float64),
        'labels': torch.tensor([0, 3, -100, 2, 1, 3]),
        'of_classes': torch.rand(4, dtype=torch.float64) + 0.1,
        'ties': torch.tensor([2, 5, 5, 1, 5, 1]),
        'matrix': n(3, 3) + 4 * torch.eye(3, dtype=torch.float64),
    }


CALLS = """
batch_norm(n(6, 4), *stats, True, 0.3); batch_norm(n(6, 4, 3), *stats, True, 0.1, 1e-3)
batch_norm(n(6, 4, 2, 3), *stats, True); batch_norm(n(6, 4), *stats, False)
F.batch_norm(n(6, 4), None, None, training=True)
multi_head_attention_forward(n(3, 6, 4), n(5, 6, 4), n(5, 6, 4), None, *weights)
multi_head_attention_forward(n(3, 6, 4), n(5, 6, 4), n(5, 6, 4), mask, *weights)
F.scaled_dot_product_attention(n(6, 4), n(5, 4), n(5, 3))
F.scaled_dot_product_attention(n(2, 6, 4), n(2, 5, 4), n(2, 5, 3))
F.scaled_dot_product_attention(n(2, 6, 4), n(2, 5, 4), n(2, 5, 3), uniform > 0.3)
F.conv1d(n(6, 4, 8), n(3, 4, 3), n(3)); F.conv3d(n(4, 2, 3, 3, 3), n(3, 2, 2, 2, 2), n(3))
F.conv_transpose1d(n(6, 4, 5), n(4, 3, 3), n(3))
F.conv_transpose3d(n(4, 2, 3, 3, 3), n(2, 3, 2, 2, 2), n(3))
F.layer_norm(n(6, 4), (4,), n(4), n(4)); F.group_norm(n(6, 4, 3), 2, n(4), n(4))
F.instance_norm(n(6, 4, 5), None, None, n(4), n(4)); F.rms_norm(n(6, 4), (4,), n(4))
F.cross_entropy(n(6, 4), labels % 4, weight=of_classes, label_smoothing=0.2)
F.cross_entropy(n(6, 4), labels % 4, weight=of_classes, ignore_index=3)
F.cross_entropy(n(6, 4), labels, size_average=False); F.cross_entropy(n(6, 4), labels, reduce=False)
F.cross_entropy(n(6, 4), labels); F.nll_loss(n(6, 4), labels, of_classes)
F.cross_entropy(n(3, 4, 6), labels.clamp(min=0).expand(3, 6).clone())
F.binary_cross_entropy_with_logits(n(6, 4), n(6, 4).sigmoid(), pos_weight=of_classes)
F.kl_div(n(6, 4), n(6, 4).softmax(-1), reduction='batchmean'); torch.multinomial(n(6, 4).exp(), 2)
torch.median(n(7)); torch.nanmedian(n(7)); torch.mode(n(7)); torch.kthvalue(n(7), 3)
torch.sort(n(7)); torch.argsort(n(7)); torch.cumsum(n(7), 0); torch.flip(n(7), (0,))
torch.quantile(n(7), 0.3); torch.topk(n(7), 4); torch.logcumsumexp(n(7), 0); torch.argmax(ties)
torch.argmin(ties); torch.unique(ties); torch.bincount(ties); torch.max(ties, 0); torch.min(ties, 0)
torch.unique(ties, return_inverse=True, return_counts=True); torch.bincount(ties, n(6), 9)
torch.histc(n(7), 4); F.one_hot(ties); torch.cov(n(3, 6)); torch.select_copy(n(6, 3), 1, 0)
torch.unsafe_split_with_sizes(n(6, 3), [1, 2], 1); torch.poisson(n(6, 3).abs())
torch.binomial(n(6, 3).abs().ceil(), uniform[:, :3]); Tensor.random_(n(6, 3))
torch.detach_copy(n(6, 3)); Tensor.type_as(n(6, 3).float(), n(6, 3)); Tensor.cpu(n(6, 3))
solve(matrix, n(3, 6)); solve_triangular(matrix.tril(), n(3, 6)); Tensor.fill_diagonal_(n(6, 6), 2)
F.dropout1d(n(6, 4, 3), 0.5, True); F.dropout1d(n(6, 4), 0.5, False)
"""


@cache
def by_hand() -> dict[str, list[Case]]:
    """Cases by the name of their function."""
    torch.manual_seed(0)
    names = _names()
    found: dict[str, list[Case]] = {}
    of_table = [eval(call, names) for call in expressions(CALLS)]
    for case in (*of_table, *_recurrents(), *_operators()):
        found.setdefault(case.function.__name__, []).append(case)
    return found


def _recurrents() -> Iterator[Case]:
    """Sequences in the middle and in front, and a cell."""
    for name, gates in {'lstm': 4, 'gru': 3, 'rnn_tanh': 1, 'rnn_relu': 1}.items():
        function, of_cell = getattr(torch, name), getattr(torch, f'{name}_cell')
        weights = [n(3 * gates, 5), n(3 * gates, 3), n(3 * gates), n(3 * gates)]
        states: Any = [n(1, 6, 3), n(1, 6, 3)] if name == 'lstm' else n(1, 6, 3)
        first: Any = [n(6, 3), n(6, 3)] if name == 'lstm' else n(6, 3)
        for x, is_first in ((n(4, 6, 5), False), (n(6, 4, 5), True)):
            yield _case(function, x, states, weights, True, 1, 0.0, True, False, is_first)
        yield _case(of_cell, n(6, 5), first, *weights)


def _operators() -> Iterator[Case]:
    number, other = n(6, 3), n(6, 3).abs() + 0.5
    whole, few = torch.randint(1, 9, (6, 3)), torch.randint(1, 4, (6, 3))
    bits = 'lshift rshift and_ or_ xor'

    def named(names: str, what: str, make: Callable[..., Any], *args: Tensor) -> Iterator[Case]:
        for name in names.split():
            function = partial(make, name)
            function.__name__ = f'operator {name}{what}'  # type: ignore[attr-defined]
            yield Case(function, args, {})

    def of_two(name: str, x: Any, y: Any) -> Any:
        return getattr(operator, name)(x, y)

    def of_number(name: str, x: Any) -> Any:
        return getattr(operator, name)(3, x)

    signs = 'truediv floordiv mod iadd isub imul itruediv ifloordiv imod'
    yield from named(signs, '', of_two, number, other)
    yield from named(f'{bits} ilshift irshift iand ior ixor', '', of_two, whole, few)
    yield from named(f'add sub mul floordiv mod {bits}', ' of a number', of_number, few)
