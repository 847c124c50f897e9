"""Functions of lists of tensors, as optimizers call them: what they are of every place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike
from pyg_sar.rows.align import align, as_rows, rows_in
from pyg_sar.rows.registry import bare_name, is_in_place, is_pointwise, name_of, rule
from pyg_sar.rows.replicated import mean_gradient_if_plain
from pyg_sar.rows.rows import plainly, refuse, tag
from pyg_sar.rows.sharding import Space

_OF_ONE = {n.strip('_')[8:] for n in dir(torch) if n.startswith('_foreach_')} - {'max'}
_BY_NUMBER = [f'foreach_{n}' for n in _OF_ONE if is_pointwise(n) or n in ('clone', 'copy', 'zero')]


@rule(' '.join([*_BY_NUMBER, 'fused_adam', 'fused_adamw', 'fused_sgd', 'fused_adagrad']))
def _by_number(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs on the own rows."""
    values = [*args, *kwargs.values()]
    columns = list(zip(*(arg for arg in values if _is_list(arg)), strict=True))
    own = [align(func, c, {}) if rows_in(c) else (c, {}, 0, None) for c in columns]
    for old, (new, *_) in zip(columns, own, strict=True) if is_in_place(name_of(func)) else ():
        if any(a is not b for a, b in zip(old, new, strict=True)):  # it would write to a copy
            refuse(func, 'in place, and a plain tensor of the whole or other rows')
    lists = iter([list(column) for column in zip(*(new for new, *_ in own), strict=True)])
    values = [next(lists) if _is_list(arg) else mean_gradient_if_plain(arg) for arg in values]
    with plainly():
        results = func(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
    places = [(right, space) for *_, right, space in own]
    for result, (right, space) in zip(results or (), places, strict=False):
        if space is not None:
            as_rows(result, right, space)
    return results


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > 0


@rule('foreach_norm foreach_max')
def _of_all(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
    of_one = getattr(torch, bare_name(func).removeprefix('foreach_'))
    return tuple(of_one(arg, *args[1:], **kwargs) for arg in args[0])


@rule('amp_foreach_non_finite_check_and_unscale')
def _unscale(func: Any, args: Any, kwargs: Any) -> None:
    """Unscales own rows, and finds on all ranks whether a number of any is not finite."""
    with plainly():
        func(*args, **kwargs)
        args[1].copy_(all_gather_alike(args[1]).amax(0))


@rule('values')
def _values(func: Any, args: Any, kwargs: Any) -> Any:
    """The rows of a sparse tensor: on every rank those that it has looked up."""
    (rows,) = args
    with plainly():
        if rows._dim or rows.sparse_dim() != 1:
            refuse(func)
        values = func(rows)
        return tag(values, 0, Space(values.size(0), what='rows that were looked up'))
