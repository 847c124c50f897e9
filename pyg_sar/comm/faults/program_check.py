"""Whether the ranks are at the same operation, before they do it.

Messages of different sizes must not meet: gloo ends the process then. So every collective begins
with one number of 8 bytes, which all of them have in common: a code of what the operation is, where
it is done and what it moves, beside a small number of the operation's own. Their sum tells every
rank whether all codes are equal. The decision of a layer is this number and nothing else.

When ranks debug they compare more, before every operation: how many rows go where.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyg_sar.comm import transport
from pyg_sar.comm.json_values import decode, encode
from pyg_sar.comm.transport import Group

NUMBER_BITS = 24
"""Bits of an operation's own number, in which its sum over the ranks must have room."""
_CODE_BITS = 27  # with the number's, and 12 for the sum over up to 4,095 ranks: 63
SHORT = 512
"""Bytes of a text that needs no further messages."""


class Operation(NamedTuple):
    """An operation of one rank, in words and numbers that any encoding carries.

    Attributes:
        name: What it is, in the words of all ranks.
        layer: Where.
        forms: Dtype and shape of what it moves, of a single row where numbers of rows differ.
        sends: How many rows go to each rank, where ranks know what they get.
        expects: How many rows come from each rank.
    """

    name: str
    layer: str = ''
    forms: Sequence[str] = ()
    sends: Sequence[int] = ()
    expects: Sequence[int] = ()


def forms_of(rows: Iterable[Tensor]) -> list[str]:
    """The forms of tensors whose numbers of rows differ between the ranks."""
    return [f'rows of {t.dtype} of shape {tuple(t.shape[1:])}' for t in rows]


def form_of(tensor: Tensor) -> str:
    """The form of tensors that are alike on all ranks."""
    return f'{tensor.dtype} of shape {tuple(tensor.shape)}'


def code_of(words: str, bits: int) -> int:
    """A number that other words hardly have."""
    return zlib.crc32(words.encode()) >> (32 - bits)


def sum_alike(words: str, number: int, group: Group, world_size: int) -> int | None:
    """The sum of the ranks' numbers, or None if their words differ (one message of 8 bytes).

    With codes c the sum tells whether all are equal: on a rank for which it is P c though others
    differ, c would be their mean. For random codes that does not happen, and where it does its next
    operation ends in the error of the others.

    Args:
        words: What this rank is about to do.
        number: At least 0; the sum must be less than ``2**NUMBER_BITS``.
        group: All ranks.
        world_size: How many they are, less than 4,096.
    """
    code = code_of(words, _CODE_BITS)
    packed = torch.tensor([code << NUMBER_BITS | number], device=transport.small_device(group))
    total = int(transport.all_reduce(packed, group))
    return total % (1 << NUMBER_BITS) if total >> NUMBER_BITS == code * world_size else None


def gather_texts(text: bytes, group: Group, *, is_short: bool) -> list[bytes]:
    """The texts of all ranks, with spaces at the end: one all-gather, two if one is not short."""
    device, size = transport.small_device(group), SHORT
    if not is_short:
        size = int(transport.all_gather(torch.tensor(len(text), device=device), group).max())
    own = torch.frombuffer(bytearray(text.ljust(size)[:size]), dtype=torch.uint8).to(device)
    return [each.numpy().tobytes() for each in transport.all_gather(own, group).cpu()]


def first_other(words: str, rank: int, group: Group) -> tuple[int, str]:
    """The first rank that is at something else, and what that is."""
    codes = [f'{code_of(words, 32)} {words}'.encode()]
    texts = gather_texts(codes[0], group, is_short=True)
    own = texts[rank]
    other = next((r for r, text in enumerate(texts) if text != own), rank)
    said = texts[other].decode(errors='replace').split(' ', 1)[1].strip()
    return other, said


def gather(own: Operation, group: Group) -> list[Operation]:
    """The operations of all ranks."""
    texts = gather_texts(encode(tuple(own)), group, is_short=False)
    return [Operation(*decode(text)) for text in texts]


def difference(operations: Sequence[Operation]) -> str | None:
    """In what the operations of all ranks differ, told from what most do; None if in nothing."""
    for words in (_name, _forms):
        said = [words(operation) for operation in operations]
        usual = Counter(said).most_common(1)[0][0]
        odd = next((rank for rank, each in enumerate(said) if each != usual), None)
        if odd is not None:
            return f'{usual} on rank {said.index(usual)} (got {said[odd]} on rank {odd})'
    for sender, a in enumerate(operations):
        for reader, b in enumerate(operations):
            if a.sends and b.expects and a.sends[reader] != b.expects[sender]:
                return (
                    f'{_name(a)} with {b.expects[sender]} rows from rank {sender} on rank '
                    f'{reader} (got {a.sends[reader]} rows that rank {sender} sends)'
                )
    return None


def _name(operation: Operation) -> str:
    return f'{operation.name} in {operation.layer or "no layer"}'


def _forms(operation: Operation) -> str:
    return f'{_name(operation)} with {" and ".join(operation.forms) or "no rows"}'
