"""The counts of a profile as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, fields

from pyg_sar.monitor import bytes_text
from pyg_sar.profiling.records import PassProfile, Summary

_NAMES = ('layer', 'conv', 'path', 'mode', 'pass')
_COUNTS = ('calls', 'rows in', 'rows out', 'bytes in', 'bytes out', 'waiting s', 'computing s')

_Line = tuple[list[str], list[float | None]]
"""What a line is of, and its numbers; None where there is nothing to tell."""


def table_of_one(summary: Summary) -> str:
    """One rank's counts."""
    lines = [[*_NAMES, *_COUNTS, 'peak']]
    lines += [[*names, *_texts(numbers)] for names, numbers in _lines(summary)]
    start = summary.start_bytes
    at_first = '' if start is None else f', {bytes_text(start)} at the beginning'
    head = (
        f'rank {summary.rank} of {summary.world_size}: {summary.seconds:.3f} s, of which '
        f'{summary.outside_share:.0%} outside of layers; peak: {summary.memory} memory{at_first}'
    )
    return '\n'.join([head, *_aligned(lines, len(_NAMES))])


def table_of_all(summaries: Sequence[Summary]) -> str:
    """The least, the mean and the most over the ranks, of every number by itself."""
    lines = [[*_NAMES, 'ranks', *_COUNTS, 'peak']]
    for of_ranks in zip(*map(_lines, summaries), strict=True):
        columns = list(zip(*(numbers for _, numbers in of_ranks), strict=True))
        names = of_ranks[0][0]
        for name, reduce in _REDUCTIONS.items():
            lines.append([*names, name, *_texts([_over(column, reduce) for column in columns])])
            names = [''] * len(names)
    first = summaries[0]
    seconds = _mean([s.seconds for s in summaries])
    share = _mean([s.outside_share for s in summaries])
    head = (
        f'{first.world_size} ranks: {seconds:.3f} s, of which {share:.0%} outside of layers (means '
        f'of the ranks); peak: {first.memory} memory'
    )
    return '\n'.join([head, *_aligned(lines, len(_NAMES) + 1)])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    'least': min,
    'mean': _mean,
    'most': max,
}


def _over(
    values: Sequence[float | None], reduce: Callable[[Sequence[float]], float]
) -> float | None:
    known = [value for value in values if value is not None]
    return reduce(known) if known else None


def _lines(summary: Summary) -> list[_Line]:
    lines: list[_Line] = []
    for layer in summary.layers:
        names = [layer.path or '(model)', layer.conv, '+'.join(layer.paths) or '-', layer.mode]
        lines.append(([*names, 'forward'], [*astuple(layer.forward), layer.peak_bytes]))
        lines.append((['', '', '', '', 'backward'], [*astuple(layer.backward), None]))
    for name, passes in (
        ('forward', _total(layer.forward for layer in summary.layers)),
        ('backward', _total(layer.backward for layer in summary.layers)),
    ):
        label = 'all layers' if name == 'forward' else ''
        lines.append(([label, '', '', '', name], [*astuple(passes), None]))
    _, *outside = astuple(summary.outside)
    lines.append((['outside of layers', '', '', '', ''], [None, *outside, None]))
    return lines


def _total(passes: Iterable[PassProfile]) -> PassProfile:
    found = PassProfile()
    for each in passes:
        for field in fields(each):
            setattr(found, field.name, getattr(found, field.name) + getattr(each, field.name))
    return found


def _count(number: float) -> str:
    return f'{number:,.0f}'


def _seconds(number: float) -> str:
    return f'{number:.4f}'


_FORMATS = (_count, _count, _count, bytes_text, bytes_text, _seconds, _seconds, bytes_text)


def _texts(numbers: Sequence[float | None]) -> list[str]:
    return [
        '' if number is None else form(number)
        for number, form in zip(numbers, _FORMATS, strict=True)
    ]


def _aligned(lines: list[list[str]], num_left: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        '  '.join(
            text.ljust(width) if i < num_left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
