"""An exchange in which the owner of rows sends sums of them where fewer rows travel so.

The reader chooses, for every remote block, a cover (:mod:`pyg_sar.shard.vertex_cover`), and tells
the owner once: the rows that it wants, the edges whose sums it wants, and their constant weights.
From then on a step carries these rows and, after them, the sums: to the reader both are rows, those
of a block of its own. Backward is the adjoint: the gradient of a sum is that of its destination,
and the owner adds it, times the weight, to its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_reduce_sum, all_to_all, all_to_all_counts
from pyg_sar.comm.exchange import lent_to_another
from pyg_sar.ops.spmm import add_segment_sums
from pyg_sar.shard.blocks import Plan
from pyg_sar.shard.csr import Segments, compacted, make_segments
from pyg_sar.shard.shard import Step
from pyg_sar.shard.vertex_cover import BlockCover, cover_of, covers_pay
from pyg_sar.utils.offload import is_read_by_rows, selected_rows


@dataclass(frozen=True, eq=False)
class OwnSums:
    """The sums of own rows that another rank reads."""

    num_sums: int
    by_sum: Segments  # own rows by sum
    by_row: Segments  # sums by own row
    weight: Tensor | None  # of every edge ``[num_edges]``, in the order of `by_sum`

    @cached_property
    def _compacted(self) -> tuple[Tensor, Segments]:
        return compacted(self.by_sum)

    def put(self, out: Tensor, rows: Tensor) -> None:  # noqa: D102
        sums, segments = out if out.dtype == rows.dtype else rows.new_empty(out.shape), self.by_sum
        if is_read_by_rows(rows):
            index, segments = self._compacted
            rows = selected_rows(rows, index)
        add_segment_sums(sums, rows, segments, self.weight, replace=True)
        if sums is not out:
            out.copy_(sums)

    def add(self, out: Tensor, gradients: Tensor) -> None:  # noqa: D102
        add_segment_sums(out, gradients.to(out.dtype), self.by_row, self.weight)


@torch.inference_mode(False)  # a plan outlives the caller's mode
@torch.no_grad()
def covered(plan: Plan, weight: Tensor | None) -> Plan | None:
    """The plan by which rows and sums travel; None where a tenth of the halo rows is not spared.

    It has own blocks as they are, blocks of what comes, and a shard whose steps carry it, for the
    values of these constant weights ``[num_edges]`` only, or None for ones. Collective: an
    all-reduce, and where it pays two or three all-to-alls.
    """
    shard, num_own = plan.shard, plan.shard.parts_per_rank
    covers = {block.part: cover_of(block) for block in plan.blocks[num_own:]}
    size = sum(cover.size for cover in covers.values())
    device = plan.edge_index.device
    sizes = torch.tensor([size, shard.num_halo], dtype=torch.int64, device=device)
    size, num_halo = all_reduce_sum(sizes, 'the rows of covers').tolist()
    if not covers_pay(size, num_halo):
        return None
    asked = _asked(plan, covers, weight)
    steps = tuple(
        replace(
            _step(step, shard.num_own, *asked[step.send_rank, number % num_own]),
            recv_rows=covers[step.part].size,
        )
        for number, step in enumerate(shard.steps)
    )
    blocks = [covers[block.part].reading_block(weight) for block in plan.blocks[num_own:]]
    return replace(
        plan,
        shard=replace(shard, steps=steps, kept=lent_to_another(shard)),
        blocks=(*plan.blocks[:num_own], *blocks),
        kept={},
    )


def _step(
    step: Step, num_own: int, rows: Tensor, src: Tensor, ids: Tensor, weight: Tensor | None
) -> Step:
    """A step that sends some of its rows, and sums over edges from rows `src` to sums `ids`."""
    if not src.numel():
        return replace(step, send_index=step.send_index[rows])
    own, num_sums = step.send_index[src], int(ids[-1]) + 1
    by_sum = make_segments(ids, own, num_sums, is_sorted=True)
    sums = OwnSums(num_sums, by_sum, make_segments(own, ids, num_own), weight)
    return replace(step, send_index=step.send_index[rows], sums=sums)


def _asked(
    plan: Plan, covers: dict[int, BlockCover], weight: Tensor | None
) -> dict[tuple[int, int], tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """What each rank asks of each own part: rows, and source, sum and weight of sums' edges.

    Rows and sources count among the rows that the rank reads of the part.
    """
    shard, device = plan.shard, plan.edge_index.device
    world_size, per_rank = shard.world_size, shard.parts_per_rank
    nothing = plan.edge_index.new_empty(0)
    counts = torch.zeros(world_size, per_rank, 2, dtype=torch.int64)
    texts, weights = [nothing], []
    for part, cover in sorted(covers.items()):
        src, ids = cover.summed_edges()
        counts[part // per_rank, part % per_rank] = torch.tensor([cover.rows.numel(), src.numel()])
        texts += [cover.rows, src, ids]
        if weight is not None:
            weights.append(cover.block.take(weight)[cover.by_sum])
    came = all_to_all_counts(counts.to(device)).cpu()

    def moved(values: Tensor, rows: int, edges: int) -> tuple[Tensor, ...]:
        scale = torch.tensor([rows, edges])
        sizes = (came * scale).sum(dim=2)
        sent = (counts * scale).sum(dim=(1, 2)).tolist()
        received = all_to_all(values, sent, sizes.sum(dim=1).tolist())
        return torch.split(received, sizes.flatten().tolist())

    text = moved(torch.cat(texts), 1, 2)
    weight_of = None if weight is None else moved(torch.cat([weight[:0], *weights]), 0, 1)
    asked = {}
    for k, (num_rows, num_edges) in enumerate(came.view(-1, 2).tolist()):
        ends = [0, num_rows, num_rows + num_edges, num_rows + 2 * num_edges]
        rows, src, ids = (text[k][start:end].clone() for start, end in pairwise(ends))
        asked[divmod(k, per_rank)] = rows, src, ids, None if weight_of is None else weight_of[k]
    return asked
