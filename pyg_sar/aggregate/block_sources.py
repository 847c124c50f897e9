"""The source rows of every block of a plan, whichever mode they come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from pyg_sar.comm import Exchange, Rows
from pyg_sar.shard.plan import Plan


def block_sources(
    tensors: Sequence[Tensor],
    plan: Plan,
    exchange: Exchange,
    *,
    one_shot: bool = False,
    kept: list[Tensor] | None = None,
) -> Iterator[Rows]:
    """The rows of own tensors that each block reads, in the order of the blocks.

    Collective unless `kept` holds rows: point-to-point messages, one per step, or with `one_shot`
    one all-to-all for each tensor.

    Args:
        tensors: ``[num_own, ...]`` each.
        plan: The blocks.
        exchange: The exchange of the plan's shard.
        one_shot: Fetch all halo rows at once.
        kept: What came from other ranks: an empty list is filled, a full one is used instead of an
            exchange; None to keep nothing.

    Yields:
        ``[num_rows, ...]`` of each tensor; views of what is kept, of own rows, or of buffers that
        are used again once the next block is asked for.
    """
    shard, num_tensors = plan.shard, len(tensors)
    if one_shot:
        halo = kept or exchange.fetch_all(tensors)
        if kept is not None and not kept:
            kept += halo
        each = [split_rows(t, h, plan) for t, h in zip(tensors, halo, strict=True)]
        yield from (list(rows) for rows in zip(*each, strict=True))
    elif kept:
        for part in shard.parts:
            start, end = shard.source_range(part)
            yield [t[start:end] for t in tensors]
        for first in range(0, len(kept), num_tensors):
            yield kept[first : first + num_tensors]
    else:
        for place, rows in enumerate(exchange.fetch(tensors, keep=kept is not None)):
            if kept is not None and place >= shard.parts_per_rank:
                kept += rows
            yield rows


def split_rows(own: Tensor, halo: Tensor, plan: Plan) -> list[Tensor]:
    """The source rows of every block: views into own and halo rows."""
    num_own = plan.shard.num_own
    rows = []
    for block in plan.blocks:
        is_own = block.start < num_own or block.part in plan.shard.parts
        start = block.start if is_own else block.start - num_own
        rows.append((own if is_own else halo)[start : start + block.num_rows])
    return rows
