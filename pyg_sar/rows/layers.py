"""Layers with parameters: rows are items of a batch, each computed by itself, or normalised.

Which argument has items in which dimension is written down here for each function. Parameters and
other plain tensors are of all items. A batch norm in training takes the moments of all ranks' rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm.ranks import world_size
from pyg_sar.ops.batch_norm import BatchNorm, moments
from pyg_sar.rows.align import argument, bound, dim_of, named_rule, own_rows, rows_in
from pyg_sar.rows.one_loss import for_rows, is_averaged
from pyg_sar.rows.over_ranks import on_all_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import not_empty, own_results
from pyg_sar.utils.nested import in_nested


class Items(NamedTuple):
    """Where the items of a batch are in a tensor."""

    dim: int
    num_dims: int | None = None  # that the tensor has with a batch; None for any


Where = dict[str, Items]


def by_items(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    where: Where,
    out: int | tuple[int, ...] = 0,
    *,
    draws: bool = False,
) -> Any:
    """Runs a function on the own items.

    `where` has the arguments with items (of lists all tensors), those of `args` first and in their
    order; `out` the dimension that results have them in, or that of each of them.
    """
    named = [*zip([*where, *repeat('', len(args))], args, strict=False), *kwargs.items()]
    rows = rows_in(args, kwargs)[0]
    sharding = rows._sharding
    if not all(_are_items(where.get(name), value) for name, value in named):
        return on_all_rows(func, *args, **kwargs)

    def own(at: Items | None, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if at is None and not isinstance(value, Rows):
            return for_rows(value)
        dim = at.dim if at else -1
        value = own_rows(func, value, dim, sharding)
        return value if sharding.own else not_empty(value, dim)

    with plainly(), own_draws(rows.device) if draws else nullcontext():
        values = [in_nested(value, partial(own, where.get(name))) for name, value in named]
        results = func(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
        if isinstance(out, tuple):
            return tuple(map(own_results, results, out, repeat(sharding)))
        return in_nested(results, lambda result: own_results(result, out, sharding))


def _are_items(at: Items | None, value: Any) -> bool:
    """Whether rows are where the items of a batch are."""
    dim, num_dims = at or Items(-1)
    rows = rows_in((value,))
    return all(each._dim == dim and num_dims in (None, dim_of(each)) for each in rows)


_CELLS = ('lstm', 'gru', 'rnn_tanh', 'rnn_relu')
_BY_BATCH: dict[str, Where] = {
    **{f'conv{t}{n}d': {'input': Items(0, n + 2)} for t in ('', '_transpose') for n in (1, 2, 3)},
    **{f'{kind}_cell': {n: Items(0, 2) for n in ('input', 'hx')} for kind in _CELLS},
}
"""Functions whose arguments have items, and in which dimension."""


@rule(' '.join(_BY_BATCH))
def _by_batch(func: Any, args: Any, kwargs: Any) -> Any:
    where = _BY_BATCH[name_of(func)]
    dim = _place_of_a_point(func, args, kwargs)
    if dim is not None:
        return by_items(func, args, kwargs, {'input': Items(dim)}, dim)
    return by_items(func, args, kwargs, where)


def _place_of_a_point(func: Any, args: Any, kwargs: Any) -> int | None:
    """The dimension of the rows where a convolution looks at one of them at a time; else None."""
    values, weight = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'weight')
    if not name_of(func).startswith('conv') or not isinstance(values, Rows):
        return None
    names = {3: 'stride', 4: 'padding'}
    if 'transpose' in name_of(func):
        names[5] = 'output_padding'
    from_end = values._dim - dim_of(values)
    if values._dim < dim_of(values) - dim_of(weight) + 2 or weight.size(from_end) != 1:
        return None
    for position, name in names.items():
        at = argument(args, kwargs, position, name, default=int(name == 'stride'))
        at = at[from_end if len(at) > 1 else 0] if isinstance(at, (tuple, list)) else at
        if at not in (int(name == 'stride'), 'valid', 'same'):
            return None
    return values._dim


@rule('lstm gru rnn_tanh rnn_relu')
def _recurrent(func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) < 9 or isinstance(args[3], (list, tuple)):
        refuse(func, 'of packed sequences is not known to be right')
    batch = 0 if args[8] else 1
    where = {'input': Items(batch, 3), 'hx': Items(1, 3)}
    return by_items(func, args, kwargs, where, (batch, 1, 1), draws=args[5] > 0 and args[6])


@rule('embedding')
def _embedding(func: Any, args: Any, kwargs: Any) -> Any:
    named = bound(func, args, kwargs)
    if named['max_norm'] is not None or named['scale_grad_by_freq']:
        refuse(func, "with 'max_norm' or 'scale_grad_by_freq' looks at the ids of this rank alone")
    ids, weight = named['input'], named['weight']
    # At the end of a backward a model's sparse gradients become a dense one.
    is_right = world_size() == 1 or (not isinstance(weight, Rows) and is_averaged(weight))
    if named['sparse'] and not is_right:
        refuse(func, "with 'sparse' is not known to be right")
    if isinstance(weight, Rows):
        if named['padding_idx'] is not None:
            refuse(func, "with 'padding_idx' is not known to be right in a table of rows")
        return weight[ids]
    return by_items(func, (), named, {'input': Items(ids._dim)}, ids._dim)


@named_rule('prelu')
def _prelu(func: Any, input: Rows, weight: Tensor) -> Any:
    dim = input._dim
    if dim == 1 and dim_of(input) > 1:
        return on_all_rows(func, input, weight)
    return by_items(func, (input, weight), {}, {'input': Items(dim)}, dim)


def _bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name; refuses if the first is not rows or another one is."""
    named = bound(func, args, kwargs)
    first, *rest = named.values()
    if not isinstance(first, Rows) or any(isinstance(value, Rows) for value in rest):
        refuse(func, 'as weights or statistics is not known to be right')
    return named


def _on_own_rows(func: Any, named: dict[str, Any]) -> Any:
    rows = named['input']
    with plainly():
        own = rows if rows._sharding.own else not_empty(plain(rows), rows._dim)
        others = {name: for_rows(value) for name, value in named.items()}
        return own_results(func(**others | {'input': own}), rows._dim, rows._sharding)


@rule('batch_norm')
def _batch_norm(func: Any, args: Any, kwargs: Any) -> Any:
    """In training by the moments of all ranks' rows; running statistics are equal on all ranks."""
    named = _bound(func, args, kwargs)
    rows = named['input']
    if rows._dim == 1:
        return on_all_rows(func, **named)
    if not named['training'] or rows._sharding.comm.size == 1:
        return _on_own_rows(func, named)
    dim, sharding = rows._dim, rows._sharding
    with plainly():
        x = plain(rows)
        last = x.movedim(1, -1)
        flat = last.reshape(-1, x.size(1))
        mean, var, count = moments(flat.detach())
        if count < 2:
            raise ValueError(
                f'expected more than 1 row on all ranks together when training (got {count})'
            )
        _update(named, mean, var * (count / (count - 1)))
        weight, bias = (for_rows(named[name]) for name in ('weight', 'bias'))
        out: Tensor = BatchNorm.apply(flat, weight, bias, mean, var, count, named['eps'])
        return tag(out.view(last.shape).movedim(-1, 1), dim, sharding)


def _update(named: dict[str, Any], mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for name, value in (('running_mean', mean), ('running_var', var)):
            running = named[name]
            if running is not None:
                running.lerp_(value.to(running.dtype), named['momentum'])


@rule('instance_norm')
def _instance_norm(func: Any, args: Any, kwargs: Any) -> Any:
    named = _bound(func, args, kwargs)
    rows = named['input']
    if rows._dim == 1:
        return on_all_rows(func, **named)
    if not named['use_input_stats']:
        return _on_own_rows(func, named)
    statistics = 'running_mean', 'running_var'
    if rows._dim == 0:
        if named['running_mean'] is not None:
            dims = list(range(2, dim_of(rows)))
            _update(named, rows.detach().mean(dims).mean(0), rows.detach().var(dims).mean(0))
        return _on_own_rows(func, named | dict.fromkeys(statistics))
    # As torch has it: a batch norm in which every instance has channels of its own.
    count, channels, *others = rows.shape
    flat = rows.reshape(1, count * channels, *others)
    names = ('weight', 'bias', *statistics)
    repeated = {n: None if named[n] is None else named[n].repeat(count) for n in names}
    mean, var, momentum = repeated['running_mean'], repeated['running_var'], named['momentum']
    affine = repeated['weight'], repeated['bias']
    out = F.batch_norm(flat, mean, var, *affine, True, momentum, named['eps'])
    for name, value in zip(statistics, (mean, var), strict=True):
        if value is not None:
            named[name].copy_(value.view(count, channels).mean(0))
    return out.reshape(rows.shape)
