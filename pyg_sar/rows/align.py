"""How rows and plain tensors meet: own rows everywhere, at the same place from the right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from pyg_sar.comm import world_size
from pyg_sar.rows.replicated import check_whole, met
from pyg_sar.rows.rows import Rows, plainly, refuse, tag
from pyg_sar.rows.space import Space


def found(args: Iterable[Any], kwargs: dict[str, Any] | None = None) -> list[Rows]:
    """The rows among arguments, also in lists."""
    out: list[Rows] = []
    for each in (*args, *(kwargs.values() if kwargs else ())):
        if isinstance(each, Rows):
            out.append(each)
        elif isinstance(each, (list, tuple)):
            out += found(each)
    return out


def dim_of(tensor: Tensor) -> int:
    """The number of dimensions."""
    return Tensor.dim(tensor) if type(tensor) is Tensor else _plain_dim(tensor)


def _plain_dim(tensor: Tensor) -> int:
    with plainly():
        return tensor.dim()


def own_shape(tensor: Tensor) -> list[int]:
    """The shape with the own rows."""
    with plainly():
        return list(tensor.shape)


def whole_shape(tensor: Tensor) -> list[int]:
    """The shape with the rows of all ranks (collective where their number is not known yet)."""
    shape = own_shape(tensor)
    if isinstance(tensor, Rows):
        shape[tensor._dim] = tensor._space.total
    return shape


def from_right(rows: Rows) -> int:
    """The place of the rows, counted from the last dimension: 1 for the last."""
    return dim_of(rows) - rows._dim


def common_space(func: Any, rows: list[Rows]) -> Space:
    """The space that all rows are of; refuses others."""
    space = rows[0]._space
    for other in rows[1:]:
        if not space.is_same(other._space):
            refuse(func, f'({space!r}) and of others ({other._space!r}) has no meaning')
    return space


def own_rows(func: Any, tensor: Tensor, dim: int, space: Space) -> Tensor:
    """The own rows of a plain tensor with the rows of the whole in dimension `dim`.

    One that broadcasts there stays as it is.
    """
    with plainly():
        size = tensor.size(dim)
        if size == 1 and space.known_total != 1:
            return met(tensor)
        if size == space.total and space.has_ids():
            check_whole(func, tensor)
            return met(tensor).index_select(dim, space.ids(tensor.device))
    if size == space.total:
        refuse(
            func,
            f'and a plain tensor with {size} rows: these are {space!r} without an order over all '
            'ranks, so write torch.ones_like(x), or another tensor made from the rows',
        )
    refuse(
        func,
        f'and a plain tensor with {size} rows: a plain tensor has all {space.total} rows of the '
        f'whole graph, in its order, or one (these are {space!r})',
    )


def align(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], int, Space]:
    """The arguments of a function that works number by number, with own rows everywhere.

    Returns them with the place of the rows from the right, and their space.
    """
    rows = found(args, kwargs)
    right = from_right(rows[0])
    if len(rows) == 1:
        space = rows[0]._space
    else:
        space = common_space(func, rows)
        if any(from_right(other) != right for other in rows[1:]):
            refuse(func, 'in two dimensions would pair every row with every row')

    def own(value: Any) -> Any:
        if isinstance(value, Tensor) and not isinstance(value, Rows):
            dim = value.dim() - right
            return own_rows(func, value, dim, space) if dim >= 0 else met(value)
        if type(value) in (list, tuple) and any(isinstance(each, Tensor) for each in value):
            return type(value)(own(each) for each in value)
        return value

    return tuple(own(a) for a in args), {k: own(v) for k, v in kwargs.items()}, right, space


def as_rows(out: Any, right: int, space: Space) -> Any:
    """Results, also in lists and named tuples, with rows at a place from the right."""
    if isinstance(out, Tensor):
        return tag(out, dim_of(out) - right, space)
    if isinstance(out, (tuple, list)):
        made = [as_rows(each, right, space) for each in out]
        return type(out)(*made) if hasattr(out, '_fields') else type(out)(made)
    return out


def argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int, *names: str, default: Any = None
) -> Any:
    """An argument by its place or by one of its names."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[place] if len(args) > place else default


def dims_of(value: Any, num_dims: int) -> list[int] | None:
    """Dimensions as a list of numbers from 0 on; None for all."""
    if value is None:
        return None
    return [each % num_dims for each in ((value,) if isinstance(value, int) else value)] or None


def is_several() -> bool:
    """Whether there are other ranks."""
    return world_size() > 1
