"""What travels in an epoch of a variant, foretold by a rehearsal of the real code."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from cached_graphs import cut, sizes
from many_ranks import sum_bytes
from measured_training import make_model
from rank import ROWS, VARIANTS
from report import Row
from training import default_hidden

import pyg_sar
from pyg_sar.planner.counts import sizes_of
from pyg_sar.planner.prediction import predict_cut
from pyg_sar.planner.rehearsal import Job
from pyg_sar.shard.blocks import plan_of
from pyg_sar.shard.meta import read_meta
from pyg_sar.shard.vertex_cover import cover_of

Share = Callable[[int, int], float]
"""What the way from one rank to another has of the bandwidth."""


def equal(source: int, target: int) -> float:
    """All of it."""
    return 1.0


def width(variant: str) -> float:
    """Of what travels, of float32."""
    dtype = VARIANTS[variant].get('exchange_dtype')
    return 1.0 if dtype is None else dtype.itemsize / 4


def traffic(args: argparse.Namespace, model: str, variant: str, share: Share = equal) -> Row:
    """Of an epoch, by a rehearsal: steps, and bytes of rows as a link with all bandwidth has them.

    `row_bytes` are those that the slowest ranks wait for, step by step; `least_row_bytes` those of
    the rank that receives or sends most, which no other order of steps has less of. What has a
    share of the bandwidth counts as many times as many.
    """
    size = sizes(args.graph)
    widths = size['num_features'], default_hidden(model), args.layers, size['num_classes']
    network = make_model(model, *widths)
    meta = read_meta(cut(args.graph, args.processes))
    ranks = [of._replace(cover_share=1.0) for of in sizes_of(meta, args.processes)]
    first = predict_cut(Job(network, meta), ranks, timed=False)  # `_messages` counts covers
    per_row = first.bytes_per_epoch / first.halo_rows * width(variant)
    rows = _messages(args, model == 'sage' and variant != ROWS)
    messages = {way: number / share(*way) for way, number in rows.items()}
    # All ranks do a step at once, and the slowest message of it is what they wait for.
    numbers = range(args.processes)
    steps = [max(messages[r, (r + s) % args.processes] for r in numbers) for s in numbers[1:]]
    busiest = max(
        sum(number for way, number in messages.items() if way[end] == rank)
        for end in (0, 1)
        for rank in numbers
    )
    exchanges = round(first.rows_per_epoch / first.halo_rows)
    gradients = sum_bytes(sum(p.nbytes for p in network.parameters()), args.processes)
    slowest = min(share(r, (r + 1) % args.processes) for r in numbers)  # they go round in a ring
    return {
        'steps': exchanges * (args.processes - 1),
        'row_bytes': sum(steps) * per_row,
        'least_row_bytes': busiest * per_row,
        'sum_bytes': gradients / slowest,
    }


def _messages(args: argparse.Namespace, sends_sums: bool) -> dict[tuple[int, int], int]:
    """Rows of every message of an exchange, by who sends and who receives it."""
    messages = {}
    for rank in range(args.processes):
        edges = pyg_sar.load_shard(cut(args.graph, args.processes), rank).edge_index
        for block in plan_of(edges.handle).blocks[1:]:
            rows = cover_of(block).size if sends_sums else block.num_rows
            messages[block.part, rank] = rows
    return messages
