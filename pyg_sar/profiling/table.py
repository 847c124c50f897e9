"""The counts of a profile as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from pyg_sar.monitor import bytes_text
from pyg_sar.profiling.gather import Spread
from pyg_sar.profiling.records import LayerProfile, PassProfile, Summary

_NAMES = ['layer', 'conv', 'path', 'mode', 'pass']
_COUNTS = [
    *('calls', 'rows in', 'rows out', 'bytes in', 'bytes out'),
    *('waiting s', 'computing s', 'peak'),
]
_NUM_LEFT = len(_NAMES)


def summary_table(summary: Summary) -> str:
    """One rank's counts."""
    lines = [[*_NAMES, *_COUNTS], *_lines(summary)]
    start = '' if summary.start_bytes is None else f', {bytes_text(summary.start_bytes)} at first'
    return '\n'.join(
        [
            f'rank {summary.rank} of {summary.world_size}: {summary.seconds:.3f} s, of which '
            f'{summary.outside_share:.0%} outside of layers; peak: {summary.memory} memory{start}',
            *_aligned(lines, _NUM_LEFT),
        ]
    )


def spread_table(spread: Spread) -> str:
    """The least, the mean and the most over the ranks."""
    lines = [[*_NAMES, 'ranks', *_COUNTS]]
    each = zip(*(_lines(s) for s in (spread.least, spread.mean, spread.most)), strict=True)
    for three in each:
        for name, line in zip(('least', 'mean', 'most'), three, strict=True):
            names = line[:_NUM_LEFT] if name == 'least' else [''] * _NUM_LEFT
            lines.append([*names, name, *line[_NUM_LEFT:]])
    mean = spread.mean
    return '\n'.join(
        [
            f'{mean.world_size} ranks: {mean.seconds:.3f} s, of which {mean.outside_share:.0%} '
            f'outside of layers; peak: {mean.memory} memory',
            *_aligned(lines, _NUM_LEFT + 1),
        ]
    )


def _lines(summary: Summary) -> list[list[str]]:
    lines = []
    for layer in summary.layers:
        names = [layer.path or '(model)', layer.conv, '+'.join(layer.paths) or '-', layer.mode]
        lines.append([*names, 'forward', *_counts(layer.forward), _peak(layer)])
        lines.append([''] * 4 + ['backward', *_counts(layer.backward), ''])
    forward = _total(layer.forward for layer in summary.layers)
    backward = _total(layer.backward for layer in summary.layers)
    lines.append(['all layers', '', '', '', 'forward', *_counts(forward), ''])
    lines.append(['', '', '', '', 'backward', *_counts(backward), ''])
    lines.append(['outside of layers', '', '', '', '', *_counts(summary.outside), ''])
    lines[-1][_NUM_LEFT] = ''  # calls
    return lines


def _total(passes: Iterable[PassProfile]) -> PassProfile:
    found = PassProfile()
    for each in passes:
        for field in fields(each):
            setattr(found, field.name, getattr(found, field.name) + getattr(each, field.name))
    return found


def _counts(p: PassProfile) -> list[str]:
    numbers = [f'{number:,.0f}' for number in (p.calls, p.rows_received, p.rows_sent)]
    sizes = [bytes_text(p.bytes_received), bytes_text(p.bytes_sent)]
    return [*numbers, *sizes, f'{p.waiting:.4f}', f'{p.computing:.4f}']


def _peak(layer: LayerProfile) -> str:
    return '-' if layer.peak_bytes is None else bytes_text(layer.peak_bytes)


def _aligned(lines: list[list[str]], num_left: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        '  '.join(
            text.ljust(width) if i < num_left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
