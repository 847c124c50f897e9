"""Layers of a batch: the rows are its items, and every item is computed by itself.

Which argument has items in which dimension is written down here for each function. Parameters and
other plain tensors are of all items.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from torch import Tensor

from pyg_sar.comm import world_size
from pyg_sar.ground.nested import in_nested
from pyg_sar.rows.align import argument, bound, dim_of, found, own_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import all_of_plain, is_averaged, own_draws
from pyg_sar.rows.rows import Rows, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.without_rows import with_one_row
from pyg_sar.rows.space import Space


class Items(NamedTuple):
    """Where the items of a batch are in a tensor."""

    dim: int
    num_dims: int | None = None  # that the tensor has with a batch; None for any


Where = dict[str, Items]


def by_items(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    names: str,
    where: Where,
    out: int | Sequence[int] = 0,
    *,
    draws: bool = False,
) -> Any:
    """Runs a function on the own items.

    `names` are those of `args`; `where` has the arguments with items (of lists all tensors), `out`
    the dimension that results have them in, or that of each of them.
    """
    named: list[tuple[str, Any]] = list(zip(names.split(), args, strict=False))
    named += [('', each) for each in args[len(named) :]]
    every = [*named, *kwargs.items()]
    rows = _checked(func, every, where)
    space = rows._space

    def own(name: str, value: Any) -> Any:
        if name not in where:
            return in_nested(value, all_of_plain)
        return in_nested(value, lambda each: _own(func, each, where[name], space))

    with plainly(), own_draws(rows.device) if draws else nullcontext():
        made = func(*(own(*each) for each in named), **{k: own(k, v) for k, v in kwargs.items()})
        return _tagged(made, out, space)


def _checked(func: Any, every: list[tuple[str, Any]], where: Where) -> Rows:
    rows = [(name, each) for name, value in every for each in found([value])]
    for name, each in rows:
        items = where.get(name, Items(-1, 0))
        if items.dim % dim_of(each) != each._dim or items.num_dims not in (None, dim_of(each)):
            refuse(func, 'is known where the rows are the items of a batch')
    return rows[0][1]


def _own(func: Any, value: Any, items: Items, space: Space) -> Any:
    if not isinstance(value, Tensor):
        return value
    dim = items.dim % dim_of(value)
    own = own_rows(func, value, dim, space)
    return own if space.own or own.size(dim) else with_one_row(own, dim)


def _tagged(made: Any, out: int | Sequence[int], space: Space) -> Any:
    if isinstance(made, Tensor):
        dim = (out if isinstance(out, int) else out[0]) % made.dim()
        return tag(made if space.own else made.narrow(dim, 0, 0), dim, space)
    if not isinstance(made, (tuple, list)):
        return made
    dims = [out] * len(made) if isinstance(out, int) else out
    items = [_tagged(each, dim, space) for each, dim in zip(made, dims, strict=False)]
    return type(made)(items)


_CELLS = ('lstm', 'gru', 'rnn_tanh', 'rnn_relu')
_BY_BATCH: dict[str, Where] = {
    **{f'conv{t}{n}d': {'input': Items(0, n + 2)} for t in ('', '_transpose') for n in (1, 2, 3)},
    **{key: {'input': Items(0), 'grid': Items(0)} for key in ('grid_sample', 'grid_sampler')},
    'fold': {'input': Items(0, 3)},
    **{f'{of}channel_shuffle': {'input': Items(0)} for of in ('', 'native_')},
    **{f'{kind}_cell': {n: Items(0, 2) for n in ('input', 'hx')} for kind in _CELLS},
}
"""Functions whose arguments have items, and in which dimension."""


@rule(' '.join(_BY_BATCH))
def _by_batch(func: Any, args: Any, kwargs: Any) -> Any:
    where = _BY_BATCH[name_of(func)]
    return by_items(func, args, kwargs, ' '.join(where), where)


@rule('lstm gru rnn_tanh rnn_relu')
def _recurrent(func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) < 9 or isinstance(args[3], (list, tuple)):
        refuse(func, 'of packed sequences is not known to be right')
    batch = 0 if args[8] else 1
    where = {'input': Items(batch, 3), 'hx': Items(1, 3)}
    draws = args[5] > 0 and args[6]
    return by_items(func, args, kwargs, 'input hx', where, (batch, 1, 1), draws=draws)


def _bound_embedding(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    given = bound(func, args, kwargs)
    if given['max_norm'] is not None or given['scale_grad_by_freq']:
        refuse(func, "with 'max_norm' or 'scale_grad_by_freq' looks at the ids of this rank alone")
    return given


@rule('embedding_bag')
def _embedding_bag(func: Any, args: Any, kwargs: Any) -> Any:
    given = _bound_embedding(func, args, kwargs)
    if given['sparse'] or given['offsets'] is not None:
        refuse(func, "with 'sparse' or 'offsets' is not known to be right")
    where = {'input': Items(0, 2), 'per_sample_weights': Items(0, 2)}
    return by_items(func, (), given, '', where)


@rule('embedding')
def _embedding(func: Any, args: Any, kwargs: Any) -> Any:
    given = _bound_embedding(func, args, kwargs)
    ids, weight = given['input'], given['weight']
    # The sparse gradients of a model are made a dense one at the end of a backward.
    is_right = world_size() == 1 or (not isinstance(weight, Rows) and is_averaged(weight))
    if given['sparse'] and not is_right:
        refuse(func, "with 'sparse' is not known to be right")
    if isinstance(weight, Rows):
        if given['padding_idx'] is not None:
            refuse(func, "with 'padding_idx' is not known to be right in a table of rows")
        return weight[ids]
    return by_items(func, (), given, '', {'input': Items(ids._dim)}, ids._dim)


@rule('prelu')
def _prelu(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input')
    if not isinstance(rows, Rows) or (rows._dim == 1 and dim_of(rows) > 1):
        refuse(func, 'would have the channels of this rank alone')
    return by_items(func, args, kwargs, 'input weight', {'input': Items(rows._dim)}, rows._dim)
