"""The number of edges that a message sees, which nobody knows.

It is a prime that no program has by chance: an int that divides by it counts edges. A program may
make tensors with so many rows, and may give the number to a reshape. Whoever computes with it, or
compares it, asks for all edges.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np

from pyg_sar.nn.intercept import MessageError
from pyg_sar.utils.scoped import Scoped

ALL_EDGES, ALL_NODES = 16_777_259, 16_778_291
"""Primes: how many edges, and destinations, there are."""


refused: Scoped[list[str] | None] = Scoped(None)
"""What a message was refused; it may catch the error, and go on as plain PyG would not.

None while no message is analysed.
"""


def refuse(why: str, kind: type[MessageError] = MessageError) -> NoReturn:
    """Raises a MessageError, and notes it."""
    note_refusal(why)
    raise kind(why)


def note_refusal(why: str) -> None:
    """Notes an error of a message that is analysed."""
    if refused.value is not None:
        refused.value.append(why)


class Count(int):
    """A number of edges or destinations, or one that was computed from it; Python may not ask it.

    Products and sums stay such numbers. After the analysis it is any number.
    """

    def _asks(self, *_: Any, **__: Any) -> NoReturn:
        refuse('it asks in Python for the number of edges or nodes that it sees')

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._asks() if refused.value is not None else np.asarray(int.__add__(self, 0))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if refused.value is not None:
            self._asks()
        return getattr(ufunc, method)(*map(plain_number, inputs), **kwargs)

    @staticmethod
    def _computes(name: str) -> Any:
        operation = getattr(int, name)

        def computing(self: Count, *others: Any) -> Any:
            if refused.value is not None and any(isinstance(other, float) for other in others):
                self._asks()
            out = operation(self, *others)
            return Count(out) if type(out) is int else out

        return computing

    @staticmethod
    def _tells(name: str) -> Any:
        operation = getattr(int, name)

        def telling(self: Count, *others: Any) -> Any:
            is_itself = name in ('__eq__', '__ne__') and int.__eq__(self, others[0]) is True
            # Without any edge a message gives no rows, whatever it does.
            is_none = others == (0,) and name in _COMPARE and may_be_none.value
            is_known = is_itself or is_none or refused.value is None
            return operation(self, *others) if is_known else self._asks()

        return telling

    for _name in ('add', 'radd', 'sub', 'rsub', 'mul', 'rmul', 'floordiv', 'neg', 'pos'):
        locals()[f'__{_name}__'] = _computes(f'__{_name}__')
    for _name in (
        *('eq', 'ne', 'lt', 'le', 'gt', 'ge', 'mod', 'rmod', 'divmod', 'rdivmod', 'truediv'),
        *('rtruediv', 'rfloordiv', 'pow', 'rpow', 'float', 'int', 'round', 'repr', 'format'),
    ):
        locals()[f'__{_name}__'] = _tells(f'__{_name}__')
    __hash__ = int.__hash__

    def __bool__(self) -> bool:
        is_known = may_be_none.value or refused.value is None
        return int.__bool__(self) if is_known else self._asks()


_COMPARE = frozenset(f'__{name}__' for name in ('eq', 'ne', 'lt', 'le', 'gt', 'ge'))

may_be_none: Scoped[bool] = Scoped(False)
"""Whether a program may ask if there are edges at all: without any a message gives no rows."""


_NUMBERS = (int, float, np.integer)


def is_count(value: Any) -> bool:
    """Whether a value is a number of edges or destinations, or one that was computed from it."""
    if isinstance(value, Count):
        return True
    is_number = isinstance(value, _NUMBERS) and not isinstance(value, bool) and value != 0
    return is_number and bool(value % ALL_EDGES == 0 or value % ALL_NODES == 0)


class CountedShape(tuple[int, ...]):
    """A shape with a number of edges: no torch.Size, whose numel() is a plain int."""

    def numel(self) -> int:
        """The product, which is such a number, too."""
        return math.prod(self)

    def __getitem__(self, index: Any) -> Any:
        out = super().__getitem__(index)
        return CountedShape(out) if isinstance(index, slice) else out


def counted(value: int) -> int:
    """A number, as one that Python may not ask where it counts edges."""
    return Count(value) if is_count(value) else value


def plain_number(value: Any) -> Any:
    """Any number, as one that Python may ask."""
    return int.__add__(value, 0) if isinstance(value, Count) else value


def numbers_in(values: list[Any]) -> list[Any]:
    """The numbers among values, also those of slices."""
    slices = [value for value in values if type(value) is slice]
    if slices:
        values = [*values, *(end for s in slices for end in (s.start, s.stop, s.step))]
    return [value for value in values if isinstance(value, _NUMBERS)]
