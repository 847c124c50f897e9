"""Cases of functions that torch's op_db does not have, or not with rows where users have them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from op_run import Case
from torch import Tensor

_groups: list[Callable[[], list[Case]]] = []


@cache
def by_hand() -> dict[str, list[Case]]:
    """Cases by the name of their function."""
    torch.manual_seed(0)
    found: dict[str, list[Case]] = {}
    for case in (case for group in _groups for case in group()):
        found.setdefault(case.function.__name__, []).append(case)
    return found


def _hand(group: Callable[[], list[Case]]) -> Callable[[], list[Case]]:
    _groups.append(group)
    return group


def _of(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def _case(function: Any, *args: Any, **kwargs: Any) -> Case:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = function.__name__
    return Case(call, args, kwargs)


def batch_norm(x: Tensor, mean: Tensor, var: Tensor, *rest: Any) -> Any:
    """A batch norm, and the running statistics that it has updated."""
    mean, var = mean.detach().clone(), var.detach().clone()
    return F.batch_norm(x, mean, var, *rest), mean, var


@_hand
def _batch_norms() -> list[Case]:
    of_all = [_of(4), _of(4).exp(), _of(4), _of(4)]
    return [
        _case(batch_norm, _of(6, 4), *of_all, True, 0.3),
        _case(batch_norm, _of(6, 4, 3), *of_all, True, 0.1, 1e-3),
        _case(batch_norm, _of(6, 4, 2, 3), *of_all, True),
        _case(batch_norm, _of(6, 4), *of_all, False),
        _case(F.batch_norm, _of(6, 4), None, None, training=True),
    ]


def _weights(gates: int) -> list[Tensor]:
    return [_of(3 * gates, 5), _of(3 * gates, 3), _of(3 * gates), _of(3 * gates)]


def _recurrent(function: Any, gates: int, num_states: int = 1) -> list[Case]:
    """Sequences in the middle and in front, and a cell."""

    def call(x: Tensor, batch_first: bool, *rest: Tensor) -> Any:
        states, weights = rest[:num_states], list(rest[num_states:])
        state = states[0] if num_states == 1 else states
        return function(x, state, weights, True, 1, 0.0, True, False, batch_first)

    def cell(x: Tensor, *rest: Tensor) -> Any:
        states, weights = rest[:num_states], rest[num_states:]
        state = states[0] if num_states == 1 else states
        return getattr(torch, f'{function.__name__}_cell')(x, state, *weights)

    call.__name__, cell.__name__ = function.__name__, f'{function.__name__}_cell'
    states, weights = [_of(1, 6, 3) for _ in range(num_states)], _weights(gates)
    return [
        _case(call, _of(4, 6, 5), False, *states, *weights),
        _case(call, _of(6, 4, 5), True, *states, *weights),
        _case(cell, _of(6, 5), *(state[0] for state in states), *weights),
    ]


@_hand
def _recurrents() -> list[Case]:
    gates = {torch.gru: 3, torch.rnn_tanh: 1, torch.rnn_relu: 1}
    others = [case for each, number in gates.items() for case in _recurrent(each, number)]
    return [*_recurrent(torch.lstm, 4, 2), *others]


@_hand
def _attention() -> list[Case]:
    layer = torch.nn.MultiheadAttention(4, 2, dtype=torch.float64)
    weights = [each.detach().clone() for each in layer.parameters()]
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[:, -1] = True

    def multi_head_attention_forward(
        q: Tensor, k: Tensor, v: Tensor, mask: Any, *weights: Tensor
    ) -> Any:
        in_weight, in_bias, out_weight, out_bias = weights
        options = (None, None, False, 0.0, out_weight, out_bias)
        return F.multi_head_attention_forward(
            q, k, v, 4, 2, in_weight, in_bias, *options, key_padding_mask=mask
        )

    return [
        _case(
            multi_head_attention_forward, _of(3, 6, 4), _of(5, 6, 4), _of(5, 6, 4), None, *weights
        ),
        _case(
            multi_head_attention_forward, _of(3, 6, 4), _of(5, 6, 4), _of(5, 6, 4), mask, *weights
        ),
    ]


@_hand
def _attention_to_plain_keys() -> list[Case]:
    attend = F.scaled_dot_product_attention
    return [
        _case(attend, _of(6, 4), _of(5, 4), _of(5, 3)),
        _case(attend, _of(2, 6, 4), _of(2, 5, 4), _of(2, 5, 3)),
        _case(attend, _of(2, 6, 4), _of(2, 5, 4), _of(2, 5, 3), torch.rand(6, 5) > 0.3),
    ]


@_hand
def _layers_of_items() -> list[Case]:
    return [
        _case(F.conv1d, _of(6, 4, 8), _of(3, 4, 3), _of(3)),
        _case(F.conv3d, _of(4, 2, 3, 3, 3), _of(3, 2, 2, 2, 2), _of(3)),
        _case(F.conv_transpose1d, _of(6, 4, 5), _of(4, 3, 3), _of(3)),
        _case(F.conv_transpose3d, _of(4, 2, 3, 3, 3), _of(2, 3, 2, 2, 2), _of(3)),
        _case(F.group_norm, _of(6, 4, 3), 2, _of(4), _of(4)),
        _case(F.instance_norm, _of(6, 4, 5), None, None, _of(4), _of(4)),
        _case(F.layer_norm, _of(6, 4), (4,), _of(4), _of(4)),
        _case(F.rms_norm, _of(6, 4), (4,), _of(4)),
    ]


@_hand
def _losses_of_rows() -> list[Case]:
    labels = torch.tensor([0, 3, -100, 2, 1, 3])
    weight = torch.rand(4, dtype=torch.float64) + 0.1
    options: list[dict[str, Any]] = [
        {'weight': weight, 'label_smoothing': 0.2},
        {'weight': weight, 'ignore_index': 3},
        {'size_average': False},
        {'reduce': False},
    ]
    return [
        *(_case(F.cross_entropy, _of(6, 4), labels % 4 if o else labels, **o) for o in options[:2]),
        *(_case(F.cross_entropy, _of(6, 4), labels, **o) for o in options[2:]),
        _case(F.cross_entropy, _of(6, 4), labels),
        _case(F.cross_entropy, _of(3, 4, 6), labels.clamp(min=0).expand(3, 6).clone()),
        _case(F.nll_loss, _of(6, 4), labels, weight),
        _case(
            F.binary_cross_entropy_with_logits, _of(6, 4), _of(6, 4).sigmoid(), pos_weight=weight
        ),
        _case(F.kl_div, _of(6, 4), _of(6, 4).softmax(-1), reduction='batchmean'),
    ]


@_hand
def _draws() -> list[Case]:
    return [_case(torch.multinomial, _of(6, 4).exp(), 2)]


@_hand
def _over_the_rows() -> list[Case]:
    ties = torch.tensor([2, 5, 5, 1, 5, 1])
    vector = _of(7)
    names = 'median nanmedian mode kthvalue sort argsort cumsum flip quantile topk logcumsumexp'
    given: dict[str, tuple[Any, ...]] = {
        'kthvalue': (3,),
        'flip': ((0,),),
        'cumsum': (0,),
        'logcumsumexp': (0,),
        'quantile': (0.3,),
        'topk': (4,),
    }
    return [
        *(_case(getattr(torch, name), vector, *given.get(name, ())) for name in names.split()),
        *(_case(getattr(torch, name), ties) for name in ('argmax', 'argmin', 'unique', 'bincount')),
        *(_case(getattr(torch, name), ties, 0) for name in ('max', 'min')),
        _case(torch.unique, ties, return_inverse=True, return_counts=True),
        _case(torch.bincount, ties, _of(6), 9),
        _case(torch.histc, vector, 4),
        _case(F.one_hot, ties),
        _case(torch.cov, _of(3, 6)),
    ]


def _named(name: str, function: Any, *args: Any) -> Case:
    function.__name__ = name
    return Case(function, args, {})


@_hand
def _operators() -> list[Case]:
    number, other = _of(6, 3), _of(6, 3).abs() + 0.5
    whole, few = torch.randint(1, 9, (6, 3)), torch.randint(1, 4, (6, 3))

    def of_two(name: str) -> Any:
        return lambda x, y: getattr(operator, name)(x, y)

    def of_number(name: str) -> Any:
        return lambda x: getattr(operator, name)(3, x)

    of_numbers = ['truediv', 'floordiv', 'mod', 'iadd', 'isub', 'imul', 'itruediv', 'ifloordiv']
    of_bits = ['lshift', 'rshift', 'and_', 'or_', 'xor', 'ilshift', 'irshift', 'iand', 'ior']
    reversed_too = [
        'add',
        'sub',
        'mul',
        'floordiv',
        'mod',
        'lshift',
        'rshift',
        'and_',
        'or_',
        'xor',
    ]
    return [
        *(_named(f'operator {n}', of_two(n), number, other) for n in [*of_numbers, 'imod']),
        *(_named(f'operator {n}', of_two(n), whole, few) for n in [*of_bits, 'ixor']),
        *(_named(f'operator {n} of a number', of_number(n), few) for n in reversed_too),
    ]


@_hand
def _others() -> list[Case]:
    return [
        _case(torch.select_copy, _of(6, 3), 1, 0),
        _case(torch.unsafe_split_with_sizes, _of(6, 3), [1, 2], 1),
        _case(torch.binomial, _of(6, 3).abs().ceil(), torch.rand(6, 3, dtype=torch.float64)),
        _case(torch.poisson, _of(6, 3).abs()),
        _case(Tensor.random_, _of(6, 3)),
        _case(torch.detach_copy, _of(6, 3)),
        _case(Tensor.type_as, _of(6, 3).float(), _of(6, 3)),
        _case(Tensor.cpu, _of(6, 3)),
    ]


@_hand
def _right_sides() -> list[Case]:
    """Equations whose right-hand sides are rows."""
    matrix = _of(3, 3) + 4 * torch.eye(3, dtype=torch.float64)

    def solve(a: Tensor, b: Tensor) -> Any:
        return torch.linalg.solve(a, b)

    def solve_triangular(a: Tensor, b: Tensor) -> Any:
        return torch.linalg.solve_triangular(a, b, upper=False)

    return [_case(solve, matrix, _of(3, 6)), _case(solve_triangular, matrix.tril(), _of(3, 6))]
