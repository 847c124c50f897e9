"""Predictions as tables for people and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyg_sar.planner.prediction import Prediction
from pyg_sar.planner.units import format_bytes

NOTE = (
    'Peak: the most a process holds in training over what it held with its shard loaded; within\n'
    '12 % of the measured peak in every run compared (CPU, GraphSAGE and GAT, 1 to 8 processes).\n'
    'Extrapolated cuts add the error of the cut: halo rows within 20 % at twice the ranks.\n'
    'Seconds tell the order of magnitude only: the rate of this machine now, on a graph small\n'
    'enough to measure in seconds, and no exchange hidden behind computing.'
)


def table(predictions: Sequence[Prediction], base_bytes: int) -> str:
    """One row for every number of ranks, of its largest rank.

    Args:
        predictions: The rows.
        base_bytes: What a process holds before anything is loaded.
    """
    header = (
        *('ranks', 'peak', 'shard', 'all memory', 'nodes', 'edges', 'halo rows'),
        *('rows/epoch', 'received/epoch', 'compute s', 'exchange s', 's/epoch', 'cut'),
    )
    rows = []
    for p in predictions:
        sizes = [rank.sizes for rank in p.ranks]
        rows.append(
            (
                f'{p.num_ranks:,}',
                format_bytes(p.peak_bytes),
                format_bytes(p.shard_bytes),
                format_bytes(p.memory_bytes + base_bytes),
                f'{max(s.num_own for s in sizes):,}',
                f'{max(s.num_edges for s in sizes):,}',
                f'{max(s.num_halo for s in sizes):,}',
                f'{max(r.rows_per_epoch for r in p.ranks):,}',
                format_bytes(max(r.bytes_per_epoch for r in p.ranks)),
                _seconds(p.compute_seconds),
                _seconds(p.exchange_seconds),
                _seconds(p.seconds_per_epoch),
                p.how,
            )
        )
    return _aligned(header, rows)


def rank_table(prediction: Prediction) -> str:
    """One row for every rank of one cut."""
    header = (
        *('rank', 'peak', 'shard', 'nodes', 'edges', 'halo rows', 'rows/epoch'),
        *('received/epoch', 'compute s'),
    )
    rows = [
        (
            str(place),
            format_bytes(rank.peak_bytes),
            format_bytes(rank.shard_bytes),
            f'{rank.sizes.num_own:,}',
            f'{rank.sizes.num_edges:,}',
            f'{rank.sizes.num_halo:,}',
            f'{rank.rows_per_epoch:,}',
            format_bytes(rank.bytes_per_epoch),
            _seconds(rank.compute_seconds),
        )
        for place, rank in enumerate(prediction.ranks)
    ]
    return _aligned(header, rows)


def as_dict(prediction: Prediction, base_bytes: int) -> dict[str, Any]:
    """What the tables say, in bytes and seconds, for JSON."""
    return {
        'num_ranks': prediction.num_ranks,
        'cut': prediction.how,
        'peak_bytes_max': prediction.peak_bytes,
        'shard_bytes_max': prediction.shard_bytes,
        'memory_bytes_max': prediction.memory_bytes + base_bytes,
        'compute_seconds': prediction.compute_seconds,
        'exchange_seconds': prediction.exchange_seconds,
        'seconds_per_epoch': prediction.seconds_per_epoch,
        'ranks': [
            {
                'num_nodes': rank.sizes.num_own,
                'num_edges': rank.sizes.num_edges,
                'halo_rows': rank.sizes.num_halo,
                'peak_bytes': rank.peak_bytes,
                'shard_bytes': rank.shard_bytes,
                'rows_per_epoch': rank.rows_per_epoch,
                'bytes_per_epoch': rank.bytes_per_epoch,
                'compute_seconds': rank.compute_seconds,
            }
            for rank in prediction.ranks
        ],
    }


def _seconds(value: float | None) -> str:
    if value is None:
        return '-'
    return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


def _aligned(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return '\n'.join(
        '  '.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    )
