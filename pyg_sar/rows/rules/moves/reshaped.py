"""Where the rows are in another shape of the whole.

Numbers lie in the order of the dimensions. So rows can take what is in them along: of ``[N, 8]``
the shape ``[N * 2, 4]`` has every row twice as two rows, next to each other on the same rank. The
way back is known by the space. Rows cannot be merged with what is before them: those lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyg_sar.rows.align import whole_shape
from pyg_sar.rows.rows import Rows, refuse
from pyg_sar.rows.space import Space


class Reshaped(NamedTuple):
    """The shape with the own rows, and where they are."""

    shape: list[int]
    dim: int
    space: Space


def reshaped(func: Any, rows: Rows, sizes: Sequence[Any]) -> Reshaped:
    """For the sizes of the whole, of which one may be -1; refuses what splits or mixes rows."""
    old, space = whole_shape(rows), rows._space
    new = inferred(sizes, old)
    base = space.base or space
    # As many numbers of every row of `base` lie in the rows as in what takes them up.
    per_base = space.count * math.prod(old[rows._dim + 1 :])
    fits: list[tuple[bool, int, int, int]] = []
    for dim, size in enumerate(new):
        after = math.prod(new[dim + 1 :])
        is_known = after or base.total  # else nothing is in the rows, and there are none
        count = (per_base // after if after else size // base.total) if is_known else space.count
        if size == base.total * count and count * after == per_base:
            fits.append((count != space.count, count, abs(dim - rows._dim), dim))
    if not fits:
        refuse(func, f'from {old} to {new} would split rows, or mix them with what is before them')
    _, count, _, dim = min(fits)  # of a whole of one row several fit
    made = base.times(count)
    new[dim] = made.own
    return Reshaped(new, dim, made)


def inferred(sizes: Sequence[Any], old: Sequence[int]) -> list[int]:
    """Sizes of the whole, without -1; a RuntimeError as torch has it if they do not fit."""
    new, total = [int(each) for each in sizes], math.prod(old)
    rest = math.prod(each for each in new if each != -1)
    if new.count(-1) == 1 and rest and total % rest == 0:
        new[new.index(-1)] = total // rest
    if -1 in new or math.prod(new) != total:
        raise RuntimeError(f"shape '{new}' is invalid for input of size {total}")
    return new
