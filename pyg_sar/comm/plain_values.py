"""Plain values that ranks compare, as those that have met rows, and their form as JSON.

Plain values that meet rows are those of the whole graph, equal on all ranks. With another one on
each rank (columns in the order of a set, a threshold of its own) results belong to no graph. A
comparison of each would be a message. So a rank keeps a checksum of these values, which the next
message carries. Where checksums differ, the ranks send the values, and the first that differs is an
error with its line.

A line that only some ranks have run is no error: one rank may look at rows that others do not.
Processors of two kinds round differently: numbers that differ by so little are taken for equal.

Plain values travel as JSON: what comes from the network is never unpickled. The object collectives
of ``torch.distributed`` unpickle, which may run any code of the sender.
"""

from __future__ import annotations

import json
import numbers
import os
from collections import Counter
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from pyg_sar.comm.errors import PartedError, users_line, warn, with_root_cause
from pyg_sar.utils.offload import array_of
from pyg_sar.utils.tensor_state import as_bytes, checksum

_ROOM = 2**18
"""Bytes of tensors that are kept until the next message; of others only the checksum."""

_FEW = 64

Place = tuple[str, str, int]
"""The line that a value was met at, the function, and how many this line had met before."""


class Met:
    """The values of one rank since the last message, and a `checksum` of them, 32 bits."""

    def __init__(self) -> None:
        self._rounds_alike = True
        self._read_before: set[tuple[tuple[str, int], str]] = set()
        self._coming: list[tuple[tuple[str, int], str, Tensor, Tensor | None]] = []
        self.clear()

    def clear(self) -> None:
        """Begins anew, after a message."""
        self.checksum = self._kept_bytes = 0
        self._values: list[tuple[str, int, str, Any, Tensor | None]] = []

    def note_later(self, function: str, value: Tensor, is_read: Tensor | None = None) -> None:
        """Takes note of a tensor of a device: at once on a new line, else with the gradients.

        To read it makes the host wait for the device, which no later step shall.
        """
        at = users_line() or ('', 0), function
        if at in self._read_before and len(self._coming) < _FEW:
            here = value.detach().to('cpu', non_blocking=True)
            read = None if is_read is None else is_read.to('cpu', non_blocking=True)
            self._coming.append((*at, here, read))
        else:
            self._read_before.add(at)
            read = None if is_read is None else is_read.cpu()
            self.note(function, [value.detach().cpu()], is_read=read)

    def arrived(self) -> None:
        """Notes what :meth:`note_later` got; the host has just waited for all of its devices."""
        coming, self._coming = self._coming, []
        for line, function, value, is_read in coming:
            self.note(function, [value], line, is_read)

    def note(
        self,
        function: str,
        values: list[Any],
        at: tuple[str, int] | None = None,
        is_read: Tensor | None = None,
    ) -> None:
        """Takes note of numbers, words and tensors of the host that a function of rows takes.

        Of a table `is_read`, which broadcasts to it, says where: elsewhere it may differ.
        """
        file, line = at or users_line() or ('', 0)
        for value in values:
            is_tensor = isinstance(value, Tensor)
            is_float = value.is_floating_point() if is_tensor else type(value) is float
            if is_float and not self._rounds_alike:
                continue
            if is_tensor and value.numel() <= _FEW and not value.is_complex():
                numbers = value.reshape(-1).tolist()  # faster than bytes of so few
                value = (value.dtype, tuple(value.shape), numbers)
            elif is_tensor:
                content = array_of(as_bytes(value)).tobytes()
                self.checksum = crc32(content, self.checksum)
                self._kept_bytes += len(content)
                value = value.detach().clone() if self._kept_bytes <= _ROOM else str(value.shape)
            if not isinstance(value, Tensor):
                self.checksum = crc32(repr(value).encode(), self.checksum)
            self._values.append((file, line, function, value, is_read))

    def encoded(self) -> bytes:
        """The values as a text for other ranks."""
        return encode([(f'{os.path.basename(f)}:{line}', *rest) for f, line, *rest in self._values])

    def compare(self, texts: list[bytes], own_rank: int) -> None:
        """Begins anew; raises PartedError if the values of all ranks, in rank order, differ."""
        self.clear()
        of_ranks = [_by_place(decode(text)) for text in texts]
        for place in dict.fromkeys(place for of_rank in of_ranks for place in of_rank):
            found = [(rank, *of[place]) for rank, of in enumerate(of_ranks) if place in of]
            first, value, is_read = found[0]
            others = [(rank, _as_read(value, is_read, *other)) for rank, *other in found]
            others = [(rank, other) for rank, other in others if not _is_same(value, other)]
            if others and all(_is_close(value, other) for _, other in others):
                self._rounds_alike = False
            elif others:
                line, function, _ = place
                rank, other = others[0]
                error = PartedError(
                    f"expected one value on all ranks in '{function}' of rows at {line}: "
                    f'{_said(value)} on rank {first} (got {_said(other)} on rank {rank}): numbers, '
                    'parameters and plain tensors beside rows are those of the whole graph (of a '
                    'batch of a loader take batch.x and its other attributes)'
                )
                raise with_root_cause(rank, own_rank, error)
        if not self._rounds_alike:
            warn('ranks round differently: numbers beside rows are no longer compared')


def _by_place(values: list[tuple[str, str, Any, Any]]) -> dict[Place, tuple[Any, Any]]:
    before: Counter[tuple[str, str]] = Counter()
    places = {}
    for line, function, value, is_read in values:
        if isinstance(value, tuple):
            dtype, shape, numbers = value
            value = torch.tensor(numbers, dtype=dtype).view(shape)
        places[line, function, before[line, function]] = value, is_read
        before[line, function] += 1
    return places


def _as_read(value: Any, is_read: Any, other: Any, is_other_read: Any) -> Any:
    """What another rank has; of a table only where one of the two ranks reads it."""
    tensors = [t for t in (value, is_read, other, is_other_read) if isinstance(t, Tensor)]
    if len(tensors) < 4 or value.dtype != other.dtype or value.shape != other.shape:
        return other
    return torch.where(is_read | is_other_read, other, value)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return checksum(value) == checksum(other) and value.shape == other.shape
    return repr(value) == repr(other)


def _is_close(value: Any, other: Any) -> bool:
    """Whether floating point numbers have the first half of their digits in common."""
    if type(value) is float and type(other) is float:
        value, other = torch.tensor(value), torch.tensor(other)
    if not (isinstance(value, Tensor) and isinstance(other, Tensor) and value.is_floating_point()):
        return False
    if value.dtype != other.dtype or value.shape != other.shape:
        return False
    limit = torch.finfo(value.dtype).eps ** 0.5 * value.double().abs().nan_to_num().max()
    return torch.allclose(value.double(), other.double(), rtol=0, atol=limit, equal_nan=True)


def _said(value: Any) -> str:
    if not isinstance(value, Tensor):
        return str(value)[:80]
    numbers = ', '.join(f'{number:.6g}' for number in value.reshape(-1)[:6].tolist())
    return f'a tensor of shape {tuple(value.shape)} [{numbers}{", ..." * (value.numel() > 6)}]'


_SCALARS = (str, int, float, bool, type(None))
_SEQUENCES: dict[str, Any] = {'list': list, 'tuple': tuple, 'set': set, 'frozenset': frozenset}


def encode(value: Any) -> bytes:
    """JSON that :func:`decode` makes equal values of the same types from.

    Of None, bool, int, float, str, torch.dtype, a dense tensor, or lists, tuples, sets and dicts of
    them; raises TypeError for anything else.
    """
    return json.dumps(_tagged(value)).encode()


def decode(text: bytes) -> Any:
    """The value that was encoded."""
    try:
        return _untagged(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f'expected plain values as JSON (got {error!r})') from error


def _tagged(value: Any) -> Any:
    """`value` in JSON's own types: a list is a list, anything else that is no scalar a dict."""
    if type(value) in _SCALARS:
        return value
    if type(value) is list:
        return [_tagged(item) for item in value]
    kind = type(value).__name__
    if type(value) is _SEQUENCES.get(kind):
        return {kind: [_tagged(item) for item in value]}
    if type(value) is dict:
        return {kind: [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {'dtype': str(value).removeprefix('torch.')}
    if type(value) is Tensor:
        content = as_bytes(value.cpu())
        return {'tensor': [_tagged(value.dtype), [*value.shape], content.tolist()]}
    if isinstance(value, (numbers.Integral, numbers.Real)):  # of NumPy
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f'expected plain values to send to other ranks (got a {type(value).__name__})')


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_untagged(item) for item in content)
    if kind == 'dict':
        return {_untagged(key): _untagged(item) for key, item in content}
    if kind == 'dtype':
        dtype = getattr(torch, content)
        if isinstance(dtype, torch.dtype):
            return dtype
    if kind == 'tensor':
        dtype, shape, octets = content
        return torch.tensor(octets, dtype=torch.uint8).view(_untagged(dtype)).view(shape)
    raise ValueError(f"an unknown kind of value, '{kind}'")
