"""The counts of a profile as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from statistics import fmean
from typing import Any

from pyg_sar.command_line import aligned
from pyg_sar.monitor import bytes_text
from pyg_sar.profiling.records import Summary

_NAMES = ('layer', 'conv', 'path', 'mode', 'pass')
_ROWS, _SECONDS = '{:,.0f}'.format, '{:.4f}'.format
_COUNTS: dict[str, Callable[[float], str]] = {
    **{'calls': _ROWS, 'rows in': _ROWS, 'rows out': _ROWS},
    **{'bytes in': bytes_text, 'bytes out': bytes_text},
    **{'waiting s': _SECONDS, 'computing s': _SECONDS, 'peak': bytes_text},
}
"""How the fields of Counts are written, in their order."""


def table(summaries: Sequence[Summary], *, of_all: bool) -> str:
    """One rank's counts, or the least, the mean and the most over the ranks, of each by itself."""
    first = summaries[0]
    reductions: dict[str, Any] = {'': fmean}
    whose, remark = f'rank {first.rank} of {first.world_size}', ''
    if of_all:
        reductions = {'least': min, 'mean': fmean, 'most': max}
        whose, remark = f'{len(summaries)} ranks', ' (means of the ranks)'
    elif first.start_bytes is not None:
        remark = f', {bytes_text(first.start_bytes)} at the beginning'
    rows = [[*_NAMES, *(['ranks'] if of_all else []), *_COUNTS]]
    for of_ranks in zip(*map(_lines, summaries), strict=True):
        names = of_ranks[0][0]
        columns = list(zip(*(counts for _, counts in of_ranks), strict=True))
        for name, reduce in reductions.items():
            cells = [
                form(reduce(known)) if (known := [n for n in column if n is not None]) else ''
                for form, column in zip(_COUNTS.values(), columns, strict=True)
            ]
            rows.append([*names, *([name] if of_all else []), *cells])
            names = [''] * len(names)
    seconds, share = (fmean(getattr(s, n) for s in summaries) for n in ('seconds', 'outside_share'))
    head = f'{whose}: {seconds:.3f} s, of which {share:.0%} outside of layers; '
    return '\n'.join(
        [f'{head}peak: {first.memory} memory{remark}', *aligned(rows, len(rows[0]) - len(_COUNTS))]
    )


def _lines(summary: Summary) -> Iterator[tuple[list[str], tuple[float | None, ...]]]:
    """What a line is of, and its counts; None where there is nothing to tell."""
    for layer in summary.layers:
        names = [layer.path or '(model)', layer.conv, '+'.join(layer.paths) or '-', layer.mode]
        yield [*names, 'forward'], astuple(layer.forward)
        yield [*[''] * 4, 'backward'], astuple(layer.backward)
    for title, name in (('all layers', 'forward'), ('', 'backward')):
        *of_layers, _ = zip(*(astuple(getattr(s, name)) for s in summary.layers), strict=True)
        yield [title, *[''] * 3, name], (*map(sum, of_layers), None)
    _, *outside, _ = astuple(summary.outside)
    yield ['outside of layers', *[''] * 4], (None, *outside, None)
