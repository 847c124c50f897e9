"""Own rows in place of all arguments of a function, in the same dimension from the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import fetched, in_one_place
from pyg_sar.rows.registry import BROADCAST, Rule, is_in_place, name_of, rule, signature_of
from pyg_sar.rows.replicated import check_whole
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.unsigned import picked

_ALIKE = 'select alike in both, as in x[mask] and y[mask]'


def named_rule(names: str, instead: str = '') -> Callable[[Callable[..., Any]], Rule]:
    """Enters a rule ``f(func, ...)`` that has the parameters of the functions.

    An argument that `f` annotates as Rows must be rows. One annotated as Any may be rows; no other
    may. Options that `f` does not have are refused.
    """

    def enter(function: Callable[..., Any]) -> Rule:
        kinds = {p.name: p.annotation for p in signature(function).parameters.values()}
        kinds.pop('func')

        @wraps(function)
        def named(func: Any, args: Any, kwargs: Any) -> Any:
            values = dict(zip(kinds, args, strict=False)) | kwargs
            if len(args) > len(kinds) or not values.keys() <= kinds.keys():
                refuse(func, 'with these options is not known to be right')
            for name, value in values.items():
                if kinds[name] != 'Any' and (kinds[name] == 'Rows') != isinstance(value, Rows):
                    refuse(func)
            return function(func, **values)

        return rule(names, instead)(named)

    return enter


def rows_in(args: Iterable[Any], kwargs: dict[str, Any] | None = None) -> list[Rows]:
    """The rows among arguments, also in lists."""
    return [arg for arg in leaves((*args, *(kwargs or {}).values())) if isinstance(arg, Rows)]


def dim_of(tensor: Tensor) -> int:
    """The number of dimensions."""
    with plainly():
        return tensor.dim()


def whole_shape(tensor: Tensor) -> list[int]:
    """The shape with the rows of all ranks (collective where their number is not known yet)."""
    with plainly():
        shape = list(tensor.shape)
    if isinstance(tensor, Rows):
        shape[tensor._dim] = tensor._sharding.total
    return shape


def from_right(rows: Rows) -> int:
    """The dimension of the rows, counted from the last one: 1 for the last."""
    return dim_of(rows) - rows._dim


def own_rows(func: Any, tensor: Tensor, dim: int, sharding: Sharding) -> Tensor:
    """The own rows of a tensor that has rows of the whole graph in dimension `dim`; plain.

    A plain tensor of size 1 there stays as it is. Rows of another sharding with as many are sent
    to the ranks that need them: row i of the whole goes with row i, as on one machine.
    """
    if isinstance(tensor, Rows):
        if tensor._dim != dim:
            refuse(func, *BROADCAST)
        return plain(brought(func, tensor, sharding))
    with plainly():
        size = tensor.size(dim)
        if size == 1 and sharding.known_total != 1:
            return for_rows(tensor)
        if size == sharding.total and sharding.has_ids():
            check_whole(func, tensor)
            return picked(for_rows(tensor), dim, sharding.ids(tensor.device))
    if size == sharding.total:
        refuse(
            func,
            f'and a plain tensor with {size} rows, as these are {sharding!r} without an order over '
            'all ranks',
            'write torch.ones_like(x), or another tensor made from the rows',
        )
    refuse(
        func,
        f'and a plain tensor with {size} rows: a plain tensor has all {sharding.total} rows of the '
        f'whole graph, in its order, or one (these are {sharding!r})',
        f'{_ALIKE}, or write pyg_sar.gather(x)',
    )


def brought(func: Any, rows: Rows, sharding: Sharding) -> Any:
    """Rows of any sharding as rows of one with as many; the same object if they are of it.

    One row of another stands beside all of them, plain.
    """
    if sharding.is_same(rows._sharding):
        return rows
    other = rows._sharding
    if other.total == 1 != sharding.total:
        return for_rows(in_one_place(func, rows))
    if other.total != sharding.total or not (other.has_ids() and sharding.has_ids()):
        refuse(func, f'({sharding!r}) and of others ({other!r}) has no meaning', _ALIKE)
    with plainly():
        return tag(
            fetched(rows, sharding.ids(rows.device), are_rows=True).movedim(0, rows._dim),
            rows._dim,
            sharding,
        )


def masked(func: Any, mask: Tensor, sharding: Sharding) -> tuple[Sharding, Tensor]:
    """The rows that a mask selects, and the plain mask of the own rows."""
    key = (
        brought(func, mask, sharding)
        if isinstance(mask, Rows)
        else own_rows(func, mask, 0, sharding)
    )
    return sharding.selected(key), plain(key)


def align(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], int, Sharding]:
    """The arguments of a function that works number by number, with own rows everywhere.

    Returns them with the dimension of the rows from the right, and their sharding.
    """
    rows = rows_in(args, kwargs)
    right, sharding = from_right(rows[0]), rows[0]._sharding
    if any(not sharding.is_same(other._sharding) for other in rows[1:]) and sharding.total == 1:
        rows = sorted(rows, key=lambda each: each._sharding.total == 1)  # beside more rows
        right, sharding = from_right(rows[0]), rows[0]._sharding
    if any(from_right(other) != right for other in rows[1:]):
        kept = rows[0] if is_in_place(name_of(func)) else max(rows, key=from_right)
        right, sharding = from_right(kept), kept._sharding
        args, kwargs = in_nested((args, kwargs), partial(_pairs, func, kept))

    own = tuple(_aligned(func, arg, right, sharding) for arg in args)
    named = {name: _aligned(func, value, right, sharding) for name, value in kwargs.items()}
    return own, named, right, sharding


def _pairs(func: Any, kept: Rows, value: Any) -> Any:
    """All rows, for rows in another dimension: ``A / A.sum(1)``, ``y[:, None] == y[None]``.

    ``x - y`` of an ``[N, 1]`` and an ``[N]``, all pairs by accident, is refused.
    """
    if not isinstance(value, Rows) or from_right(value) == from_right(kept):
        return value
    dim = dim_of(kept) - from_right(value)
    if dim < 0 or (whole_shape(kept)[dim] == 1 and dim_of(value) < dim_of(kept)):
        refuse(func, *BROADCAST)
    return in_one_place(func, value)


def _aligned(func: Any, value: Any, right: int, sharding: Sharding) -> Any:
    if isinstance(value, Rows):
        return brought(func, value, sharding)
    if isinstance(value, Tensor):
        dim = value.dim() - right
        return own_rows(func, value, dim, sharding) if dim >= 0 else for_rows(value)
    if type(value) in (list, tuple) and any(isinstance(item, Tensor) for item in value):
        return type(value)(_aligned(func, item, right, sharding) for item in value)
    return value


def as_rows(out: Any, right: int, sharding: Sharding) -> Any:
    """Results, also in lists and named tuples, with rows in a dimension from the right."""
    if isinstance(out, Tensor):
        return tag(out, dim_of(out) - right, sharding)
    if isinstance(out, (tuple, list)):
        results = [as_rows(result, right, sharding) for result in out]
        return type(out)(*results) if hasattr(out, '_fields') else type(out)(results)
    return out


def argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], position: int, *names: str, default: Any = None
) -> Any:
    """An argument by its position or by one of its names."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[position] if len(args) > position else default


def bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a function of torch.nn.functional by name, with the defaults."""
    if func is not getattr(torch.nn.functional, name_of(func), None):
        name = name_of(func)
        refuse(func, 'is known by its public name', f'write torch.nn.functional.{name}(...)')
    call = signature_of(func).bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


def dims_of(value: Any, num_dims: int) -> list[int] | None:
    """Dimensions as a list of numbers from 0 on; None for all."""
    if value is None:
        return None
    return [dim % num_dims for dim in ((value,) if isinstance(value, int) else value)] or None


def sizes_in(args: Sequence[Any], kwargs: dict[str, Any], *names: str) -> list[Any]:
    """Sizes as numbers or as one list, by position or by one of the names."""
    sizes = next((kwargs[name] for name in names if name in kwargs), args)
    if isinstance(sizes, int):
        return [sizes]
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = sizes[0]
    return list(sizes)


def check_range(func: Any, ids: Tensor, sharding: Sharding) -> None:
    """Raises for a list that differs between the ranks, or has ids that no row of the whole has."""
    check_whole(func, ids)
    with plainly():
        if ids.numel() and not -sharding.total <= int(ids.min()) <= int(ids.max()) < sharding.total:
            raise IndexError(f'index out of range: expected ids from 0 to {sharding.total - 1}')


def listed(func: Any, ids: Tensor, sharding: Sharding) -> tuple[Sharding, Tensor]:
    """The sharding of a list of rows of the whole, equal on all ranks, and where its own are."""
    check_range(func, ids, sharding)
    places = sharding.local_index(torch.where(ids < 0, ids + sharding.total, ids))
    own = (places >= 0).nonzero().view(-1)
    what, nodes = f'listed {sharding.what}', sharding.nodes
    made = Sharding(own.numel(), what=what, ids=own, total=ids.numel(), nodes=nodes)
    return made, places[own]
