"""Whether a tensor has changed: its version, a checksum of its content, and how it is set back.

What is computed once is kept as long as a tensor stays as it is. The version of a tensor counts
what torch writes into it, but not what is written through ``.data`` or NumPy.

The checksum is one pass over the memory. The tensor is read as 64-bit words in rows of m, and

| ``sum over the columns j < m of mix(j * ODD + sum over the rows i of word_ij)``  (mod 2^64)

changes with any change of one word, as ``mix`` is one-to-one. Any other change goes unseen by
chance only: rows of features are much shorter than m and no simple part of it, so rows or features
in another order do not meet in their old columns. Of a small tensor every word has its own column.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.utils.nested import leaves

_ROWS = 31.4159
"""Not a whole number: a tensor that is rolled by its half must not meet its old columns."""

_FEWEST = 1031
"""Columns, a prime: few words in fewer columns would meet in any order."""

_ODD = 0x1E3779B97F4A7C15
_LOW = (1 << 32) - 1


def checksum(tensor: Tensor) -> tuple[int, ...]:
    """Numbers that tell contents apart; the same for the same bits in the same order."""
    return tuple(_numbers(tensor).tolist())  # one wait for a device


def as_bytes(tensor: Tensor) -> Tensor:
    """All numbers as bytes in one row, without history; a view of a contiguous tensor."""
    return _flat(tensor).view(torch.uint8)


def _flat(tensor: Tensor) -> Tensor:
    """All numbers in one row; a contiguous tensor of one number may have any stride."""
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return values.as_strided(values.shape, (1,))


def _numbers(tensor: Tensor) -> Tensor:
    values = _flat(tensor)
    size = values.element_size()
    if values.storage_offset() * size % 8:
        values = values.clone()
    num_words = values.numel() * size // 8
    words = values[: num_words * 8 // size].view(torch.int64)
    rest = values[num_words * 8 // size :].view(torch.uint8)
    width = max(int(num_words / _ROWS) | 1, _FEWEST)
    num_whole = num_words // width * width
    sums = words[:num_whole].view(-1, width).sum(0)
    sums[: num_words - num_whole] += words[num_whole:]
    # Far apart: with j alone [5, 9] would meet [10, 4].
    other = torch.arange(width, device=sums.device).mul_(_ODD)
    sums += other
    for _ in range(2):
        torch.bitwise_right_shift(sums, 32, out=other)
        sums ^= other.bitwise_and_(_LOW)
        sums *= _ODD
    return torch.cat([sums.sum().view(1), rest])


_LARGE = 2**15
"""So many numbers are as well read where they are as in a vector with others."""


_FEW_BYTES = 2**16
"""On a CPU so many are sooner hashed as they are than added up in columns."""


def digest(tensors: Iterable[Tensor]) -> int:
    """A number of 64 bits that tells the contents of several tensors apart."""
    small: dict[Any, list[Tensor]] = {}
    numbers: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel() >= _LARGE:
            numbers.setdefault(tensor.device, []).append(_numbers(tensor))
        else:
            small.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach().reshape(-1))
    few = b''
    for (_, device), flat in small.items():
        vector = torch.cat(flat)
        if device.type == 'cpu' and vector.nbytes <= _FEW_BYTES:
            few += vector.view(torch.uint8).numpy().tobytes()
        else:
            numbers.setdefault(device, []).append(_numbers(vector))
    text = repr([torch.cat(of_device).tolist() for of_device in numbers.values()])
    return int.from_bytes(hashlib.blake2b(text.encode() + few, digest_size=8).digest(), 'little')


GIVE_AWAY = {
    *(Tensor.numpy, Tensor.__array__, Tensor.data_ptr, Tensor.__dlpack__, Tensor.share_memory_),
    *(Tensor.storage, Tensor.untyped_storage, Tensor.__cuda_array_interface__.__get__),
}
"""Functions after which others may write to the memory of a tensor, without an operation."""


def version_of(tensor: Tensor) -> object:
    """A value that is equal as long as nothing is written to a tensor.

    Torch counts no changes of tensors of inference mode: theirs is never equal.
    """
    return object() if tensor.is_inference() else tensor._version


@cache
def written_by(func: Any) -> frozenset[int | str]:
    """Which arguments an operation of torch writes to, by place and by name."""
    return frozenset(
        key
        for index, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for key in (index, argument.name)
    )


@dataclass(eq=False)
class HeldTensor:
    """A tensor, to be set back; `before` has its numbers once somebody may write to them."""

    name: str  # of the attribute that it is in
    value: Tensor
    memory: Tensor  # an alias of the tensor as it was
    version: object
    grad: Tensor | None
    before: Tensor | None = None

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> HeldTensor | None:
        """What to hold of a tensor; None where nothing can be written to it."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                return None
            grad = tensor.grad if tensor.is_leaf else None
            return cls(name, tensor, tensor.detach(), version_of(tensor), grad)

    def changed(self) -> list[str]:
        """Its attribute where numbers, memory or gradient are others now."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if self.value.is_leaf and self.value.grad is not self.grad:
                is_same = False
            elif storage_of(self.memory) is None:
                is_same = self.version == version_of(self.value)
            else:
                is_there = _place(self.value) == _place(self.memory)
                is_same = is_there and _is_equal(self.memory, self.before)
            return [] if is_same else [self.name]

    def put_back(self) -> None:
        """Sets it back; raises a ValueError where that cannot be."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if storage_of(self.memory) is not None:
                self.value.data = self.memory
            elif self.version != version_of(self.value):
                raise ValueError(
                    'expected a forward that changes no such tensor in place (got one of shape '
                    f'{tuple(self.value.shape)}, {self.value.layout}): write to a clone of it'
                )
            if self.value.is_leaf:
                self.value.grad = self.grad
            if self.before is not None and not _is_equal(self.memory, self.before):
                self.memory.copy_(self.before)  # else it may be mapped for reading alone


def _place(tensor: Tensor) -> tuple[object, ...]:
    return storage_of(tensor), tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride()


def _is_equal(a: Tensor, b: Tensor | None) -> bool:
    """Whether numbers are equal, nan included; without others they are."""
    return b is None or torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def storage_of(tensor: Tensor) -> int | None:
    """The storage of a tensor's numbers; None where they are in several, or in none."""
    if tensor.layout != torch.strided or tensor.device.type == 'meta':
        return None
    return tensor.untyped_storage()._cdata


class Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies held tensors before an operation writes to their memory, by whatever tensor."""

    def __init__(self, tensors: Iterable[HeldTensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._held: defaultdict[int | None, list[HeldTensor]] = defaultdict(list)
        for held in tensors:
            self._held[storage_of(held.memory)].append(held)

    def keep(self, value: Any) -> None:
        """Copies what is held of the memory of a tensor, or of those in a list."""
        for key in {storage_of(leaf) for leaf in leaves(value) if isinstance(leaf, Tensor)} - {
            None
        }:
            for held in self._held.pop(key, ()):
                held.before = held.memory.detach().clone()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ for kind in types):
            return NotImplemented  # made of other tensors, whose operations come here
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            for key, value in (*enumerate(args), *kwargs.items()):
                if key in written_by(func):
                    self.keep(value)
            return func(*args, **kwargs)


class GivenAway(TorchFunctionMode):
    """Copies held tensors before their memory goes to what writes without an operation."""

    def __init__(self, writes: Writes) -> None:
        super().__init__()
        self._writes = writes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in GIVE_AWAY:
            with torch._C.DisableTorchFunction():
                self._writes.keep(args[0])
        return func(*args, **(kwargs or {}))
