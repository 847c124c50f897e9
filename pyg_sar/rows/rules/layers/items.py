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
from pyg_sar.rows.align import argument, dim_of, found, own_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import all_of_plain, is_averaged, own_draws
from pyg_sar.rows.rows import Rows, in_nested, plainly, refuse, tag
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

    Args:
        func: The function.
        args: Its arguments.
        kwargs: The others.
        names: What the positions of `args` are called.
        where: The arguments that have items; in lists and tuples all tensors.
        out: In which dimension the results have them, or each of the results.
        draws: Whether it draws random numbers.
    """
    named: list[tuple[str, Any]] = list(zip(names.split(), args, strict=False))
    named += [('', each) for each in args[len(named) :]]
    every = [*named, *kwargs.items()]
    space, rows = _checked(func, every, where)

    def own(name: str, value: Any) -> Any:
        if name not in where:
            return in_nested(value, all_of_plain)
        return in_nested(value, lambda each: _own(func, each, where[name], space))

    with plainly(), own_draws(rows.device) if draws else nullcontext():
        made = func(*(own(*each) for each in named), **{k: own(k, v) for k, v in kwargs.items()})
        return _tagged(made, out, space)


def _checked(func: Any, every: list[tuple[str, Any]], where: Where) -> tuple[Space, Rows]:
    rows = [(name, each) for name, value in every for each in found([value])]
    space = rows[0][1]._space
    for name, each in rows:
        items = where.get(name)
        if items is None or items.dim % dim_of(each) != each._dim:
            refuse(func, 'is known where the rows are the items of a batch')
        if items.num_dims not in (None, dim_of(each)):
            refuse(func, 'is known where the rows are the items of a batch')
    return space, rows[0][1]


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


_CONVS = {f'conv{t}{n}d': n + 2 for t in ('', '_transpose') for n in (1, 2, 3)}


@rule(' '.join(_CONVS))
def _conv(func: Any, args: Any, kwargs: Any) -> Any:
    where = {'input': Items(0, _CONVS[name_of(func)])}
    return by_items(func, args, kwargs, 'input weight bias', where)


@rule('grid_sample grid_sampler')
def _sampled(func: Any, args: Any, kwargs: Any) -> Any:
    where = {'input': Items(0), 'grid': Items(0)}
    return by_items(func, args, kwargs, 'input grid', where)


@rule('fold channel_shuffle native_channel_shuffle')
def _patches(func: Any, args: Any, kwargs: Any) -> Any:
    at_least = 3 if name_of(func) == 'fold' else None
    return by_items(func, args, kwargs, 'input', {'input': Items(0, at_least)})


@rule('lstm gru rnn_tanh rnn_relu')
def _recurrent(func: Any, args: Any, kwargs: Any) -> Any:
    if len(args) < 9 or isinstance(args[3], (list, tuple)):
        refuse(func, 'of packed sequences is not known to be right')
    batch = 0 if args[8] else 1
    where = {'input': Items(batch, 3), 'hx': Items(1, 3)}
    draws = args[5] > 0 and args[6]
    return by_items(func, args, kwargs, 'input hx', where, (batch, 1, 1), draws=draws)


@rule('lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell')
def _cell(func: Any, args: Any, kwargs: Any) -> Any:
    return by_items(func, args, kwargs, 'input hx', {'input': Items(0, 2), 'hx': Items(0, 2)})


@rule('embedding_bag')
def _embedding_bag(func: Any, args: Any, kwargs: Any) -> Any:
    names = 'input weight offsets max_norm norm_type scale_grad_by_freq'
    given = dict(zip(names.split(), args, strict=False)) | kwargs
    if given.get('max_norm') is not None or given.get('scale_grad_by_freq'):
        refuse(func, "with 'max_norm' or 'scale_grad_by_freq' looks at the ids of this rank alone")
    if given.get('sparse') or given.get('offsets') is not None:
        refuse(func, "with 'sparse' or 'offsets' is not known to be right")
    where = {'input': Items(0, 2), 'per_sample_weights': Items(0, 2)}
    return by_items(func, args, kwargs, names, where)


def _is_in_a_model(weight: Any) -> bool:
    """Whether the sparse gradients of the ranks are made a dense one at the end of a backward."""
    return world_size() == 1 or (isinstance(weight, Tensor) and is_averaged(weight))


@rule('embedding')
def _embedding(func: Any, args: Any, kwargs: Any) -> Any:
    names = 'input weight padding_idx max_norm norm_type scale_grad_by_freq sparse'
    given = dict(zip(names.split(), args, strict=False)) | kwargs
    ids, weight = given.get('input'), given.get('weight')
    if getattr(func, '__module__', '') != 'torch.nn.functional':
        refuse(func, 'is known as a function of torch.nn.functional only')
    if given.get('max_norm') is not None or given.get('scale_grad_by_freq'):
        refuse(func, "with 'max_norm' or 'scale_grad_by_freq' looks at the ids of this rank alone")
    if given.get('sparse') and (isinstance(weight, Rows) or not _is_in_a_model(weight)):
        refuse(func, "with 'sparse' is not known to be right")
    if isinstance(weight, Rows):
        if given.get('padding_idx') is not None:
            refuse(func, "with 'padding_idx' is not known to be right in a table of rows")
        return weight[ids]
    assert isinstance(ids, Rows)
    return by_items(func, args, kwargs, names, {'input': Items(ids._dim)}, ids._dim)


@rule('prelu')
def _prelu(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input')
    if not isinstance(rows, Rows) or (rows._dim == 1 and dim_of(rows) > 1):
        refuse(func, 'would have the channels of this rank alone')
    return by_items(func, args, kwargs, 'input weight', {'input': Items(rows._dim)}, rows._dim)
