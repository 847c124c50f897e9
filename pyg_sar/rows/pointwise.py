"""Functions that work number by number, or row by row whatever the dimension of the rows.

Also those of lists of tensors, as optimizers call them (``torch._foreach_add``): what they are of
every place.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_gather_alike
from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import (
    align,
    argument,
    as_rows,
    dim_of,
    from_right,
    rows_in,
    whole_shape,
)
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.registry import bare_name, is_in_place, is_pointwise, name_of, names, rule
from pyg_sar.rows.replicated import PLAIN, own_draws
from pyg_sar.rows.rows import Rows, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.nested import in_nested

_DRAWS = names(
    'rand_like randn_like randint_like bernoulli normal uniform exponential random geometric '
    'cauchy log_normal poisson dropout alpha_dropout rrelu binomial rrelu_with_noise '
    'standard_gamma'
)
"""Functions that draw random numbers."""

_DRAWS_ALIKE = names(
    'rand_like randn_like randint_like normal_ uniform_ exponential_ random_ cauchy_ log_normal_ '
    'geometric_'
)
"""Those of these functions whose numbers do not depend on the rows."""

_MOST_DRAWN_ALIKE = 2**22
"""Up to so many numbers of the whole graph are drawn on every rank, as one process draws them."""


@rule(
    # Functions that torch does not tag as pointwise.
    'pointwise broadcast_tensors cpu cuda clone detach contiguous float double half '
    'bfloat16 long int bool short char byte zeros_like ones_like empty_like full_like '
    'zero fill copy relu leaky_relu elu gelu silu selu celu relu6 softplus softsign '
    'hardtanh logsigmoid log_sigmoid tanhshrink hardshrink softshrink threshold mish '
    'hardswish hardsigmoid masked_fill isclose pin_memory positive '
    'truediv floordiv mod and or xor invert lshift rshift neg pos abs eq ne lt le gt ge pow add '
    'sub mul rsub rdiv radd rmul rpow div true_divide nan_to_num resolve_conj resolve_neg '
    'polygamma conj conj_physical '
    'cfloat cdouble chalf float_power divmod rdivmod complex polar real imag isreal alias_copy '
    'detach_copy coalesce to_dense '
    # Other names of those that torch tags.
    'absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh divide fix floor_divide greater '
    'greater_equal less less_equal multiply negative not_equal subtract '
    'expit gammainc gammaincc gammaln multigammaln ndtr psi '
)
def pointwise(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs on the own rows."""
    rows = args[0] if args else None
    if isinstance(rows, Rows):
        sharding, learns = rows._sharding, False
        with plainly():
            right = rows.dim() - rows._dim
            for arg in (*args[1:], *kwargs.values()):
                if isinstance(arg, Rows):
                    if arg._sharding is not sharding or arg.dim() - arg._dim != right:
                        break
                elif type(arg) in PLAIN:
                    is_one = sharding.own < 2 and sharding.known_total == 1  # all rows are
                    if arg.dim() >= right and (arg.size(-right) != 1 or is_one):
                        break
                    learns = learns or arg.requires_grad
                elif isinstance(arg, (Tensor, list, tuple)):
                    break
            else:  # rows of one sharding, and what is the same for every row
                if learns:
                    args = [for_rows(v) for v in args]
                    kwargs = {k: for_rows(v) for k, v in kwargs.items()}
                out: Any = func(*args, **kwargs)
                is_new = type(out) is Tensor and out.size(-right) == sharding.own
                if is_new:
                    out.__class__ = Rows  # as `tag` does, but for a call in every function
                    out._dim, out._sharding = out.dim() - right, sharding
                return out if is_new else as_rows(out, right, sharding)
    elif is_in_place(name_of(func)):
        return into_plain(func, args, kwargs)
    args, kwargs, right, sharding = align(func, args, kwargs)
    with plainly():
        return as_rows(func(*args, **kwargs), right, sharding)


@rule('to type_as')
def _cast(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows stay rows, plain tensors stay plain; the other tensor tells a type and a device only."""
    tensor = args[0]
    with plainly():
        out = func(*args, **kwargs)
        return tag(out, tensor._dim, tensor._sharding) if isinstance(tensor, Rows) else out


@rule(' '.join(_DRAWS))
def _drawn(func: Any, args: Any, kwargs: Any) -> Any:
    name = name_of(func)
    rows: Any = args[0] if args else None
    if _is_off(name, args, kwargs) or (is_in_place(name) and not isinstance(rows, Rows)):
        return pointwise(func, args, kwargs)
    args, kwargs, right, sharding = align(func, args, kwargs)
    values = (*args, *kwargs.values())
    with plainly():
        if name in _DRAWS_ALIKE and is_drawn_alike(rows):
            return _drawn_alike(func, name, rows, args, kwargs)
        generator = next((v for v in values if isinstance(v, torch.Generator)), None)
        device = next(arg.device for arg in values if isinstance(arg, Rows))
        with own_draws(device, generator):
            return as_rows(func(*args, **kwargs), right, sharding)


@rule('dropout1d dropout2d dropout3d feature_alpha_dropout')
def _drawn_of_channels(func: Any, args: Any, kwargs: Any) -> Any:
    """Drops channels of every row; where nothing is dropped rows may be channels."""
    name, rows = name_of(func), args[0]
    num_dims = dim_of(rows)
    is_batch = num_dims == {'dropout1d': 3, 'dropout3d': 5}.get(name, num_dims)
    if not _is_off(name, args, kwargs) and (from_right(rows) != num_dims or not is_batch):
        instead = 'write F.dropout1d(x[:, None], p)[:, 0] to drop whole rows, or F.dropout(x, p)'
        refuse(func, 'is known for rows in front that have channels, [N, C, ...]', instead)
    return _drawn(func, args, kwargs)


def is_drawn_alike(rows: Any) -> bool:
    """Whether a draw like these rows gives the numbers of one process."""
    if not isinstance(rows, Rows) or not rows._sharding.has_ids():
        return False
    return math.prod(whole_shape(rows)) <= _MOST_DRAWN_ALIKE


def _drawn_alike(func: Any, name: str, rows: Rows, args: Any, kwargs: Any) -> Any:
    """All numbers on every rank, of which it takes its own."""
    drawn = func(_like_whole(rows, is_in_place(name)), *args[1:], **kwargs)
    own = drawn.index_select(rows._dim, rows._sharding.ids(rows.device))
    return rows.copy_(own) if is_in_place(name) else tag(own, rows._dim, rows._sharding)


def _like_whole(rows: Rows, in_place: bool) -> Tensor:
    """A tensor of the whole in the layout of one process: torch draws in the order of memory.

    Ranks ask each other, as the strides of one row say nothing (collective, but for new vectors).
    """
    shape, own = whole_shape(rows), None
    if rows._sharding.own > 1:
        strides = rows.stride()
        order = sorted(range(len(shape)), key=lambda dim: -strides[dim])
        own = order, in_place and not rows.is_contiguous()
    layouts = agree(own) if in_place or len(shape) > 1 else []
    order, has_gaps = next((layout for layout in layouts if layout), ([*range(len(shape))], False))
    sizes = [shape[dim] for dim in order]
    sizes[-1] *= 1 + has_gaps
    like = torch.empty(sizes, dtype=rows.dtype, device=rows.device)
    like = like[..., ::2] if has_gaps else like
    return like.permute([order.index(dim) for dim in range(len(shape))])


def into_plain(func: Any, args: Any, kwargs: Any) -> Any:
    """Into a plain tensor, in place: all ranks write what the rows of all say."""
    args, kwargs = in_nested((args, kwargs), whole)
    with plainly():
        return func(*args, **kwargs)


def _is_off(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a dropout drops nothing, or an rrelu does not train, and so draws nothing."""
    if name == 'rrelu':
        return not argument(args, kwargs, 3, 'training', default=False)
    p = argument(args, kwargs, 1, 'p', default=0.5)
    learns = argument(args, kwargs, 2, 'training', 'train', default=True)
    return 'dropout' in name and (not learns or p == 0)


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
    values = [next(lists) if _is_list(arg) else for_rows(arg) for arg in values]
    with plainly():
        results = func(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
    places = [(right, sharding) for *_, right, sharding in own]
    for result, (right, sharding) in zip(results or (), places, strict=False):
        if sharding is not None:
            as_rows(result, right, sharding)
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
        return tag(values, 0, Sharding(values.size(0), what='rows that were looked up'))
