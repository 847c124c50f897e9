"""New tensors made from rows for their dtype and device: ``x.new_zeros(size)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.space import Space


def space_of_size(rows: Rows, size: Sequence[int]) -> Space | None:
    """Whose rows a new tensor of a size has: of the one known space with so many, if any."""
    if not size:
        return None
    near = (rows._space, *rows._space.neighbours)
    found = [each for each in near if each.known_total == size[0]]
    return found[0] if found and all(each is found[0] for each in found) else None


@rule('new_zeros new_ones new_full new_empty')
def _new(func: Any, args: Any, kwargs: Any) -> Any:
    """With as many rows as the whole: own rows, all of one number, so no one sees a difference.

    One that takes a gradient is a leaf of the user's, and stays plain.
    """
    rows, *rest = args
    name, named = name_of(func), dict(kwargs)
    if name == 'new_full':
        size = named.pop('size') if 'size' in named else rest.pop(0)
    else:
        size, rest = named.pop('size', rest), []
    size = [size] if isinstance(size, int) else list(size)
    if len(size) == 1 and not isinstance(size[0], int):
        size = list(size[0])
    space = None if named.get('requires_grad') else space_of_size(rows, size)
    with plainly():
        if space is None:
            return func(plain(rows), size, *rest, **named)
        size[0] = space.own
        return tag(func(plain(rows), size, *rest, **named), 0, space)


@rule('new_tensor')
def _new_tensor(func: Any, args: Any, kwargs: Any) -> Any:
    rows, *rest = args
    if any(isinstance(each, Rows) for each in (*rest, *kwargs.values())):
        refuse(func, 'would copy them as those of the whole')
    with plainly():
        return func(plain(rows), *rest, **kwargs)
