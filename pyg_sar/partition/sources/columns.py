"""Columns of tables as tensors: numbers, lists of numbers, categories, times and decimals."""

from __future__ import annotations

import re
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources.names import is_text, storage
from pyg_sar.partition.sources.parts import is_list

MOST_NAMES = 10_000
"""Names of a column of categories: they go to every shard."""

_CATEGORIES = (
    "table['{0}'] = table['{0}'].astype('category') of pandas makes names into numbers, or leave "
    'the column out'
)
_REMEDIES = {
    r'(large_)?string|string_view': _CATEGORIES,
    r'(large_)?binary|dictionary<values=(large_)?binary': (
        "table['{0}'] = table['{0}'].str.decode('utf-8').astype('category') of pandas makes text "
        'into numbers, or leave the column out'
    ),
    'null': 'no row has a value; leave the column out, or fill it',
    '(large_|fixed_size_)?list<': (
        'a list in every row holds numbers, not lists or text; leave the column out, or write such '
        'lists of one length'
    ),
    '': 'leave the column out, or write what it holds as columns of numbers',
}
"""By how the name of a type begins, what to do."""

_UNITS = {'s': 'seconds', 'ms': 'milliseconds', 'us': 'microseconds', 'ns': 'nanoseconds'}


def refused(name: str, type_: Any, path: Path, remedy: str = '', *, hint: str = '') -> ValueError:
    """The error of a column that holds no numbers."""
    kind = str(type_)
    told = remedy or next(text for words, text in _REMEDIES.items() if re.match(words, kind))
    return ValueError(
        f"expected numbers in '{name}' of '{path}' (got {kind}): {hint}{told.format(name)}"
    )


class Column:
    """A column that is read in batches into scratch space.

    `values` is [N], or [N, k] of lists; `names` those of categories, else None. With `is_label`
    text is categories, and what has no value is -1, or NaN of floats.
    """

    def __init__(
        self,
        name: str,
        type_: Any,
        path: Path,
        num_rows: int,
        scratch: Scratch,
        *,
        is_label: bool = False,
        dtype: torch.dtype | None = None,
        hint: str = '',
    ) -> None:
        self.name, self._path, self._is_label, self._hint = name, path, is_label, hint
        self.type = decoded(type_)
        self._num_rows, self._scratch, self._end = num_rows, scratch, 0
        self.names: list[str] | None = None
        self._numbers: dict[Any, int] = {}  # of names
        self._seen: tuple[Any, Any] = None, None  # the last dictionary, and its numbers
        self._size = getattr(self.type, 'list_size', None)
        self._values: Tensor | None = None
        own = self._own_dtype()
        self._dtype = dtype or own
        if self._size is not None or not is_list(self.type):
            self._make()

    def _own_dtype(self) -> torch.dtype:
        types, type_ = import_module('pyarrow').types, self.type
        element = type_.value_type if is_list(type_) else type_
        is_plain = types.is_integer(element) or types.is_floating(element)
        if is_plain or types.is_boolean(element):
            of_label = self._is_label and (types.is_integer(element) or element is type_)
            if of_label and not types.is_floating(element):
                return torch.int64
            return torch.from_numpy(np.empty(0, element.to_pandas_dtype())).dtype
        is_category = types.is_dictionary(type_) and is_text(type_.value_type)
        if is_category or (self._is_label and is_text(type_)):
            self.names = []
            return torch.int64
        if types.is_temporal(type_) and not types.is_interval(type_):
            self._tell(unit_of(type_))
            return torch.int64
        if types.is_decimal(type_):
            self._tell(f'{type_}, which is read as float64')
            return torch.float64
        raise refused(self.name, type_, self._path, hint=self._hint if is_text(type_) else '')

    def _tell(self, what: str) -> None:
        warnings.warn(f"'{self.name}' of '{self._path}' holds {what}", UserWarning, stacklevel=7)

    def _make(self) -> Tensor:
        if self._values is None:
            more = (self._size or 0,) if is_list(self.type) else ()
            self._values = self._scratch.empty((self._num_rows, *more), self._dtype)
        return self._values

    @property
    def values(self) -> Tensor:
        """The numbers of all rows, once they are read."""
        return self._make()

    def add(self, array: Any) -> None:
        """The next rows, an array of pyarrow."""
        numbers, start = self._read(storage(array)), self._end
        self._end += len(array)
        self._make()[start : self._end].numpy()[:] = numbers

    def _read(self, array: Any) -> Any:
        pyarrow = import_module('pyarrow')
        types = pyarrow.types
        if is_list(array.type):
            return self._lists(array)
        if self.names is not None:
            return self._categories(array)
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_temporal(array.type):
            narrow = array.type.bit_width == 32
            array = array.cast(pyarrow.int32() if narrow else pyarrow.int64())
        if types.is_decimal(array.type):
            array = array.cast(pyarrow.float64())
        if self._is_label:
            if not types.is_floating(array.type):
                return array.cast(pyarrow.int64()).fill_null(-1).to_numpy()
        elif array.null_count:
            raise self._empty(array)
        return array.to_numpy(zero_copy_only=False)  # NaN where floats are null

    def _empty(self, array: Any) -> ValueError:
        row = self._end + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        return ValueError(
            f"expected no empty cell in '{self.name}' of '{self._path}' (got {array.null_count}, "
            f'the first in row {row}, counted from 0): fill them, or leave the column out'
        )

    def _lists(self, array: Any) -> Any:
        if array.null_count:
            raise self._empty(array)
        compute = import_module('pyarrow.compute')
        lengths = compute.list_value_length(array).to_numpy(zero_copy_only=False)
        if self._size is None and len(lengths):
            self._size = int(lengths[0])
        other = np.flatnonzero(lengths != self._size)
        if other.size:
            row = self._end + int(other[0])
            raise ValueError(
                f"expected lists of one length in '{self.name}' of '{self._path}' (got "
                f'{self._size} numbers in row 0 and {lengths[other[0]]} in row {row}, counted from '
                '0): fill the shorter ones up, or leave the column out'
            )
        flat = array.flatten()
        if flat.null_count:
            raise ValueError(
                f"expected no empty place in the lists of '{self.name}' of '{self._path}' (got "
                f'{flat.null_count}): fill them, or leave the column out'
            )
        return flat.to_numpy(zero_copy_only=False).reshape(len(array), self._size or 0)

    def _categories(self, array: Any) -> Any:
        pyarrow = import_module('pyarrow')
        if not pyarrow.types.is_dictionary(array.type):
            compute = import_module('pyarrow.compute')  # text that is empty is no label
            array = array.cast(pyarrow.large_string())
            array = compute.if_else(compute.equal(array, ''), None, array).dictionary_encode()
        if array.null_count and not self._is_label:
            raise self._empty(array)
        dictionary, numbers = self._seen
        if dictionary is None or not dictionary.equals(array.dictionary):
            numbers = np.array([self._number(each) for each in array.dictionary.to_pylist()] + [-1])
            self._seen = array.dictionary, numbers
        index = array.indices.cast(pyarrow.int64()).fill_null(len(numbers) - 1)
        return numbers[index.to_numpy()]

    def _number(self, name: Any) -> int:
        if name is None:
            if self._is_label:
                return -1
            raise ValueError(
                f"expected a name for every category of '{self.name}' of '{self._path}' (got none)"
            )
        at = self._numbers.setdefault(name, len(self._numbers))
        if at == MOST_NAMES:
            raise ValueError(
                f"expected at most {MOST_NAMES:,} names in '{self.name}' of '{self._path}' (got "
                f'more): leave the column out, or make numbers of it by pandas.factorize(table['
                f"'{self.name}'])[0]"
            )
        assert self.names is not None
        if at == len(self.names):
            self.names.append(name)
        return at


def decoded(type_: Any) -> Any:
    """The type that a column is read as: categories that are no text are the values they have."""
    types, type_ = import_module('pyarrow').types, getattr(type_, 'storage_type', type_)
    if types.is_dictionary(type_) and not ('string' in str(type_) or 'binary' in str(type_)):
        return decoded(type_.value_type)
    return type_


def unit_of(type_: Any) -> str:
    """What numbers of a type of times count, in words."""
    types = import_module('pyarrow').types
    unit = 'days' if types.is_date32(type_) else _UNITS[getattr(type_, 'unit', 'ms')]
    if types.is_timestamp(type_):
        return f'{unit} since 1970' + (' in UTC' if type_.tz else '')
    if types.is_date(type_):
        return f'{unit} since 1970'
    return f'{unit} since midnight' if types.is_time(type_) else unit
