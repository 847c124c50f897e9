"""Products of tensors whose dimensions have letters, as einsum has them.

The rows have one letter. If the result has it, it is computed row by row. If not, every rank sums
over its own rows, and the sums of all ranks are added up. Two letters with rows would make a number
for every pair of rows, which no rank can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import own_rows, rows_in
from pyg_sar.rows.over_ranks import sum_of_ranks
from pyg_sar.rows.replicated import with_mean_gradient
from pyg_sar.rows.rows import Rows, plainly, refuse, tag

Letters = Sequence[Hashable]


def contract(
    func: Any,
    operands: Sequence[Tensor],
    letters: Sequence[Letters],
    out: Letters,
    run: Callable[..., Any],
    *,
    broadcasting: Collection[Hashable] = (),
) -> Any:
    """What ``run(*operands)`` is of the whole: rows, or plain if the result has no rows.

    `letters` has one for each dimension of every operand, some of which are rows; `out` has those
    of the result. Of letters in `broadcasting` an operand may have one where others have more.
    """
    for tensor in operands:
        if tensor.layout != torch.strided:
            refuse(func, f'and a tensor of layout {tensor.layout} is not known to be right')
    letter = rows_letter(func, operands, letters)
    if letter is None:
        refuse(func, 'of these shapes is not known to be right')
    space = rows_in(operands)[0]._space
    own = []
    for tensor, of in zip(operands, letters, strict=True):
        if letter not in of:
            own.append(with_mean_gradient(tensor))
            continue
        dim = list(of).index(letter)
        is_one = not isinstance(tensor, Rows) and tensor.size(dim) == 1 and space.total != 1
        if is_one and letter not in broadcasting:
            refuse(func, f'({space!r}) and a plain tensor with one row there has no meaning')
        own.append(own_rows(func, tensor, dim, space))
    with plainly():
        result = run(*own)
        return tag(result, out.index(letter), space) if letter in out else sum_of_ranks(result)


def rows_letter(
    func: Any, operands: Sequence[Tensor], letters: Sequence[Letters]
) -> Hashable | None:
    """The letter of the rows, None if no operand has any; refuses two of them."""
    of_rows: list[Hashable] = []
    for tensor, of in zip(operands, letters, strict=True):
        if isinstance(tensor, Rows) and tensor._dim < len(of):  # others are errors of `run`
            of_rows.append(of[tensor._dim])
    for letter in of_rows:
        if letter != of_rows[0] or any(list(of).count(letter) > 1 for of in letters):
            refuse(func, 'would pair every row with every row')
    return of_rows[0] if of_rows else None
