"""Whether the ranks are at the same operation, before they do it.

Messages of different sizes must not meet: gloo ends the process then. So every collective begins
with one number of 8 bytes, which all of them have in common: a code of what the operation is, where
it is done and what it moves, beside a small number of the operation's own. Their sum tells every
rank whether all codes are equal. The decision of a layer is this number and nothing else.

Messages between two ranks carry the code as their tag, so those of different layers never meet.
When ranks debug, they have such a number before these as well.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.comm.transport import Group

_NUMBER_BITS = 24
_CODE_BITS = 27  # with the number's, and 12 for the sum over up to 4,095 ranks: 63
SHORT = 512
"""Bytes of a text that needs no further messages."""


def form_of(tensor: Tensor, *, is_rows: bool = False) -> str:
    """Dtype and shape, without the number of rows where that differs between the ranks."""
    shape = tuple(tensor.shape)
    return f'rows of {tensor.dtype} {shape[1:]}' if is_rows else f'{tensor.dtype} {shape}'


def code_of(words: str, bits: int = 31) -> int:
    """A number that other words hardly have."""
    return zlib.crc32(words.encode()) >> (32 - bits)


def sum_if_alike(words: str, number: int, group: Group, world_size: int) -> int | None:
    """The sum of the ranks' numbers, or None if their words differ (one message of 8 bytes).

    With codes c the sum tells whether all are equal: on a rank for which it is P c though others
    differ, c would be their mean. For random codes that does not happen, and where it does its next
    operation ends in the error of the others. Numbers are at least 0, their sum less than ``2**24``
    and the ranks fewer than 4,096.
    """
    code = code_of(words, _CODE_BITS)
    packed = torch.tensor([code << _NUMBER_BITS | number], device=transport.small_device(group))
    total = int(transport.all_reduce(packed, group))
    return total % (1 << _NUMBER_BITS) if total >> _NUMBER_BITS == code * world_size else None


def gather_texts(text: bytes, group: Group, *, is_short: bool) -> list[bytes]:
    """The texts of all ranks, with spaces at the end: one all-gather, two if one is not short."""
    device, size = transport.small_device(group), SHORT
    if not is_short:
        size = int(transport.all_gather(torch.tensor(len(text), device=device), group).max())
    own = torch.frombuffer(bytearray(text.ljust(size)[:size]), dtype=torch.uint8).to(device)
    return [each.numpy().tobytes() for each in transport.all_gather(own, group).cpu()]
