"""The counts of a profile as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from statistics import fmean
from typing import Any

from pyg_sar.monitor import bytes_text
from pyg_sar.profiling.records import Summary

_NAMES = ('layer', 'conv', 'path', 'mode', 'pass')
_TRAFFIC = ('rows in', 'rows out', 'bytes in', 'bytes out')
_COUNTS = ('calls', *_TRAFFIC, 'waiting s', 'computing s', 'peak')
_FORMATS = (*['{:,.0f}'.format] * 3, *[bytes_text] * 2, *['{:.4f}'.format] * 2, bytes_text)

_Numbers = Sequence[float | None]


def table_of_one(summary: Summary) -> str:
    """One rank's counts."""
    start = summary.start_bytes
    at_first = '' if start is None else f', {bytes_text(start)} at the beginning'
    return _table([summary], {'': fmean}, f'rank {summary.rank} of {summary.world_size}', at_first)


def table_of_all(summaries: Sequence[Summary]) -> str:
    """The least, the mean and the most over the ranks, of every number by itself."""
    reductions = {'least': min, 'mean': fmean, 'most': max}
    return _table(summaries, reductions, f'{len(summaries)} ranks', ' (means of the ranks)')


def _table(
    summaries: Sequence[Summary], reductions: dict[str, Any], whose: str, remark: str
) -> str:
    rows = [[*_NAMES, 'ranks' if len(reductions) > 1 else '', *_COUNTS]]
    for of_ranks in zip(*map(_lines, summaries), strict=True):
        columns = list(zip(*(numbers for _, numbers in of_ranks), strict=True))
        names = of_ranks[0][0]
        for name, reduce in reductions.items():
            known = [[n for n in column if n is not None] for column in columns]
            numbers = [reduce(column) if column else None for column in known]
            formats = zip(_FORMATS, numbers, strict=True)
            rows.append([*names, name, *('' if n is None else form(n) for form, n in formats)])
            names = [''] * len(names)
    seconds = fmean(s.seconds for s in summaries)
    share = fmean(s.outside_share for s in summaries)
    memory = f'peak: {summaries[0].memory} memory{remark}'
    head = f'{whose}: {seconds:.3f} s, of which {share:.0%} outside of layers; {memory}'
    return '\n'.join([head, *_aligned(rows)])


def _lines(summary: Summary) -> list[tuple[list[str], _Numbers]]:
    """What a line is of, and its numbers; None where there is nothing to tell."""
    lines: list[tuple[list[str], _Numbers]] = []
    for layer in summary.layers:
        names = [layer.path or '(model)', layer.conv, '+'.join(layer.paths) or '-', layer.mode]
        lines.append(([*names, 'forward'], astuple(layer.forward)))
        lines.append(([*[''] * 4, 'backward'], astuple(layer.backward)))
    for place, name in enumerate(('forward', 'backward')):
        of_layers = [numbers[:-1] for _, numbers in lines[place : 2 * len(summary.layers) : 2]]
        totals = [sum(n or 0 for n in column) for column in zip(*of_layers, strict=True)]
        lines.append(([['all layers', ''][place], *[''] * 3, name], [*totals, None]))
    _, *outside, _ = astuple(summary.outside)
    lines.append((['outside of layers', *[''] * 4], [None, *outside, None]))
    return lines


def _aligned(rows: list[list[str]]) -> list[str]:
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    widths = [max(map(len, column)) for column in columns]
    num_left = sum(column[0] in (*_NAMES, 'ranks') for column in columns)
    return [
        '  '.join(
            text.ljust(width) if i < num_left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in zip(*columns, strict=True)
    ]
