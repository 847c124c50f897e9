"""A profile as a picture: where the seconds of every rank go, and what every layer costs it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from pyg_sar.commands.pictures import heat_map, new_figure, save
from pyg_sar.monitor import Counts
from pyg_sar.profiling.records import Summary

_MAPS: dict[str, tuple[Callable[[Counts], float], str]] = {
    'computing, s': (lambda counts: counts.computing, '{:.2f}'),
    'waiting, s': (lambda counts: counts.waiting, '{:.2f}'),
    'received, MiB': (lambda counts: counts.bytes_received / 2**20, '{:,.1f}'),
    'peak of memory, MiB': (lambda counts: (counts.peak_bytes or math.nan) / 2**20, '{:,.0f}'),
}


def draw_profile(summaries: Sequence[Summary], path: str | os.PathLike[str], text: str) -> None:
    """Draws the seconds of the ranks as bars, and seconds, bytes and memory by layer and rank.

    It writes a picture or a page (.html) with `text` below; the suffix of `path` says the format.
    Raises ValueError if matplotlib is not installed, or does not know it.
    """
    passes = ('forward', 'backward')
    names = [
        f'{layer.path or "(model)"} {name}' for layer in summaries[0].layers for name in passes
    ]
    counts = [
        [*(getattr(layer, name) for layer in of_rank.layers for name in passes), of_rank.outside]
        for of_rank in summaries
    ]
    height = 1.5 + 0.3 * len(counts[0])
    figure = new_figure(13, 4 + height)
    top, bottom = figure.subfigures(2, 1, height_ratios=(4, height))
    _bars(top.subplots(), counts)
    axes = bottom.subplots(1, len(_MAPS), sharey=True)
    for axis, (title, (value, form)) in zip(axes, _MAPS.items(), strict=True):
        rows = [list(map(value, of_ranks)) for of_ranks in zip(*counts, strict=True)]
        heat_map(bottom, axis, rows, form.format, aspect='auto')
        axis.set_title(title)
        axis.set_xlabel('rank')
    axes[0].set_yticks(range(len(counts[0])), [*names, 'outside of layers'])
    seconds = sum(of_rank.seconds for of_rank in summaries) / len(summaries)
    save(figure, path, f'Profile of {len(summaries)} ranks, {seconds:.3f} s', text)


def _bars(axis: Any, counts: Sequence[Sequence[Counts]]) -> None:
    """Seconds of every rank: a high bar that waits little is the one that others wait for."""
    base = [0.0] * len(counts)
    for kind in ('computing', 'waiting'):
        for where, chosen in (('in layers', slice(-1)), ('outside of layers', slice(-1, None))):
            seconds = [sum(getattr(c, kind) for c in of_rank[chosen]) for of_rank in counts]
            axis.bar(range(len(counts)), seconds, bottom=base, label=f'{kind} {where}')
            base = [low + more for low, more in zip(base, seconds, strict=True)]
    axis.set_title('seconds of each rank')
    axis.set_xlabel('rank')
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend(loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    axis.spines[['top', 'right']].set_visible(False)
