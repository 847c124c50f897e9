"""Predictions as tables for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyg_sar.commands.command_line import aligned
from pyg_sar.planner.attention import AttentionPrediction
from pyg_sar.planner.prediction import Prediction, RankPrediction
from pyg_sar.planner.sampled import SampledPrediction

NOTE = (
    'Peak: the most a process holds in training over what it held with its shard loaded; within\n'
    '12 % of the measured peak in every run compared (CPU, GraphSAGE and GAT, 1 to 8 processes).\n'
    'Extrapolated cuts add the error of the cut: halo rows within 20 % at twice the ranks.\n'
    'Seconds tell the order of magnitude only: the rate of this machine now, on a graph small\n'
    'enough to measure in seconds, and no exchange hidden behind computing.'
)

BATCH_NOTE = (
    'It is\nthat of the shard, a round (12 batches on several ranks), three batches and a step.\n'
    'Nodes and edges are expected numbers: within 30 % of those of the one graph that was compared.'
)

RELATIONS_NOTE = (
    'taken together, as one graph with features of the mean\nwidth. A conv for each of them '
    '(HeteroConv) needs more: in each layer a row for\nevery destination of every relation. Expect '
    'more than these figures.'
)


def format_bytes(size: float) -> str:
    """Three to four digits and a decimal unit: ``'1,850 MB'``, ``'24.1 GB'``."""
    for unit, factor in (('TB', 1e12), ('GB', 1e9), ('MB', 1e6)):
        if size >= 10 * factor:
            value = size / factor
            return f'{value:,.1f} {unit}' if value < 100 else f'{value:,.0f} {unit}'
    return f'{size / 1e6:.2f} MB'


def _seconds(value: float | None) -> str:
    if value is None:
        return '-'
    return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


_COUNT: Callable[[Any], str] = '{:,}'.format
_OF_RANK: dict[str, tuple[str, Callable[[Any], str]]] = {
    'peak': ('peak_bytes', format_bytes),
    'shard': ('shard_bytes', format_bytes),
    'nodes': ('num_nodes', _COUNT),
    'edges': ('num_edges', _COUNT),
    'halo rows': ('halo_rows', _COUNT),
    'rows/epoch': ('rows_per_epoch', _COUNT),
    'received/epoch': ('bytes_per_epoch', format_bytes),
    'compute s': ('compute_seconds', _seconds),
}
_OF_BATCH: dict[str, tuple[str, Callable[[Any], str]]] = {
    'ranks': ('num_ranks', _COUNT),
    'nodes/batch': ('num_nodes', _COUNT),
    'edges/batch': ('num_edges', _COUNT),
    'remote rows': ('remote_rows', _COUNT),
    'received/batch': ('remote_bytes', format_bytes),
    'batch': ('batch_bytes', format_bytes),
    'step': ('peak_bytes', format_bytes),
    'all memory': ('memory_bytes', format_bytes),
    'batches/epoch of all': ('num_batches', _COUNT),
}
_OF_ATTENTION: dict[str, tuple[str, Callable[[Any], str]]] = {
    'ranks': ('num_ranks', _COUNT),
    'compute s': ('seconds', _seconds),
    'received/epoch': ('bytes_received', format_bytes),
}
"""Columns: the name of a figure, and its form."""


def _figures(rank: RankPrediction) -> dict[str, Any]:
    sizes, others = rank.sizes, {k: v for k, v in vars(rank).items() if k != 'sizes'}
    counts = {'num_nodes': sizes.num_own, 'num_edges': sizes.num_edges, 'halo_rows': sizes.num_halo}
    return counts | others


def _largest(ranks: Sequence[RankPrediction]) -> dict[str, str]:
    figures = [_figures(rank) for rank in ranks]
    known = {key: [f[key] for f in figures if f[key] is not None] for key in figures[0]}
    return _cells({key: max(of, default=None) for key, of in known.items()}, _OF_RANK)


def _cells(
    figures: dict[str, Any], columns: dict[str, tuple[str, Callable[[Any], str]]]
) -> dict[str, str]:
    return {name: form(figures[key]) for name, (key, form) in columns.items()}


def table(predictions: Sequence[Prediction], base_bytes: int) -> str:
    """One row for every number of ranks, of its largest rank; `base_bytes` hold all programs."""
    rows = [
        {
            'ranks': f'{p.num_ranks:,}',
            'all memory': format_bytes(p.memory_bytes + base_bytes),
            **_largest(p.ranks),
            'exchange s': _seconds(p.exchange_seconds),
            's/epoch': _seconds(p.seconds_per_epoch),
            'cut': p.how,
        }
        for p in predictions
    ]
    return _joined(rows)


def rank_table(prediction: Prediction) -> str:
    """One row for every rank of one cut."""
    return _joined([{'rank': str(i), **_largest([r])} for i, r in enumerate(prediction.ranks)])


def batch_table(batches: Sequence[SampledPrediction], base_bytes: int) -> str:
    """One row for every number of ranks, of the batches of its largest rank."""
    figures = [{**vars(b), 'memory_bytes': b.memory_bytes + base_bytes} for b in batches]
    return _joined([_cells(of, _OF_BATCH) for of in figures])


def attention_table(predictions: Sequence[AttentionPrediction]) -> str:
    """One row for every number of ranks."""
    return _joined([_cells(vars(p), _OF_ATTENTION) for p in predictions])


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
        'ranks': [_figures(rank) for rank in prediction.ranks],
    }


def _joined(rows: Sequence[dict[str, str]]) -> str:
    return '\n'.join(aligned([rows[0], *(row.values() for row in rows)]))
