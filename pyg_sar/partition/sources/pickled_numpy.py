"""NumPy's arrays and numbers in files of torch.save, read without a function of NumPy's pickles.

A pickle makes an array of a type and of bytes by calls of NumPy. Stand-ins of the same names take
their place here, which only note what they are given: a type that is plain, a shape, and as many
bytes as both need.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import numpy as np
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import tensor_of


class _Type:
    """``numpy.dtype`` in a pickle."""

    def __init__(self, code: str = '', *_: object) -> None:
        self.code = code
        self.order: Literal['<', '>', '='] = '='

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1] if state[1] in ('<', '>') else '='

    def plain(self) -> np.dtype[Any]:
        """The type, of numbers or of texts."""
        if not re.fullmatch(r'b1|[iu][1248]|f(2|4|8|16)|c(8|16|32)|[US]\d{1,9}', str(self.code)):
            what = 'objects of Python' if str(self.code).startswith('O') else f'type {self.code!r}'
            raise ValueError(f'an array of {what}')
        return np.dtype(self.code).newbyteorder(self.order)


class _Array:
    """``numpy.ndarray`` in a pickle."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def plain(self) -> Any:
        """A tensor of numbers; an array of texts, or of numbers that torch does not have."""
        if len(self.state) != 5:
            raise ValueError('an array without numbers')
        _, shape, kind, is_fortran, content = self.state
        if not isinstance(kind, _Type):
            raise ValueError('an array without a type')
        dtype = kind.plain()
        is_shape = isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or not isinstance(content, bytes):
            raise ValueError('an array of other things than numbers')
        if math.prod(shape) * dtype.itemsize != len(content):
            raise ValueError(f'an array of shape {shape}, which {len(content)} bytes are not')
        order: Any = 'F' if is_fortran else 'C'
        array = np.ndarray(shape, dtype, bytearray(content), order=order)
        tensor = tensor_of(array)
        return array if tensor is None else tensor


class _Number:
    """``numpy...scalar`` in a pickle."""

    def __init__(self, kind: object = None, content: object = None) -> None:
        self.array = _Array()
        self.array.state = 1, (), kind, False, content

    def plain(self) -> Any:
        """A number, or a text."""
        value: Any = self.array.plain()
        return value.item()


def _no_bytes() -> bytes:
    """``bytes()``, as pickles write no bytes; with a number it would allocate as many."""
    return b''


def _named(made: Any, module: str, name: str) -> Any:
    """The class or function under the name that torch's unpickler looks up."""
    made.__module__, made.__name__, made.__qualname__ = module, name, name
    return made


def _copies() -> list[Any]:
    """The functions by both names of the module, of NumPy 1 and of NumPy 2."""
    out: list[Any] = []
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):

        def reconstruct(*_: object) -> _Array:
            return _Array()

        def scalar(*state: object) -> _Number:
            return _Number(*state[:2])

        out += [_named(reconstruct, module, '_reconstruct'), _named(scalar, module, 'scalar')]
    return out


STAND_INS: list[Any] = [
    _named(_Type, 'numpy', 'dtype'),
    _named(_Array, 'numpy', 'ndarray'),
    _named(_no_bytes, 'builtins', 'bytes'),
    *_copies(),
]
"""What torch's restricted unpickler may call."""


def without_stand_ins(content: Any, name: str = '', made: dict[int, Any] | None = None) -> Any:
    """Content of a file with tensors, arrays and numbers in place of stand-ins.

    What occurs in several places, as `made` knows, stays one. A ValueError names the attribute of
    what is not plain.
    """
    kinds = (_Array, _Number, Data, HeteroData, dict, list, tuple)
    if not isinstance(content, kinds):
        return content
    made = {} if made is None else made  # by ids of objects of the file, which are all there before
    if id(content) in made:
        return made[id(content)]
    if isinstance(content, (_Array, _Number)):
        try:
            made[id(content)] = content.plain()
        except ValueError as error:
            raise ValueError(f"{error} in '{name}'") from error
        return made[id(content)]
    made[id(content)] = content
    if isinstance(content, HeteroData) or (isinstance(content, Data) and has_store(content)):
        for store in content.stores:
            without_stand_ins(store._mapping, name, made)
    elif isinstance(content, Data):
        without_stand_ins(content.__dict__, name, made)
    elif isinstance(content, dict):
        for key, value in content.items():
            content[key] = without_stand_ins(value, key if isinstance(key, str) else name, made)
    elif type(content) is list:
        content[:] = [without_stand_ins(value, name, made) for value in content]
    elif type(content) is tuple:
        made[id(content)] = tuple(without_stand_ins(value, name, made) for value in content)
    return made[id(content)]


def has_store(data: Data) -> bool:
    """Whether PyG 2 has saved a graph; PyG 1 kept its attributes in the object itself."""
    return '_store' in data.__dict__
