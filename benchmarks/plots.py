"""Pictures of the benchmarks: grouped bars, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.ticker import LogLocator

COLORS = ('#1f5fa8', '#dd8452', '#55a868', '#c44e52', '#8172b3', '#937860', '0.5', '0.75')
OF_VARIANT = {
    'sequential': '#1f5fa8',
    'sequential_no_remat': '#dd8452',
    'one_shot': '#c44e52',
    'plain PyG, CSR': '0.6',
}


def panels(count: int, title: str, columns: int | None = None) -> tuple[Any, list[Any]]:
    """A figure with `count` axes, side by side unless `columns` says how many."""
    columns = columns or count
    rows = -(-count // columns)
    size = (max(5.8 * columns, 7), 4.4 * rows + 0.2)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout='constrained')
    figure.suptitle(title)
    for axis in axes.flat:
        axis.grid(True, axis='y', alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes.flat)


def bars(
    axis: Any,
    groups: Sequence[str],
    series: dict[str, Sequence[float | None]],
    digits: int = 2,
) -> None:
    """One group of bars for every entry of `groups`, one bar of it for every series."""
    width = 0.84 / len(series)
    for number, (name, values) in enumerate(series.items()):
        known = [(i, value) for i, value in enumerate(values) if value is not None]
        places = [i + (number - (len(series) - 1) / 2) * width for i, _ in known]
        color = OF_VARIANT.get(name, COLORS[number % len(COLORS)])
        drawn = axis.bar(places, [v for _, v in known], width, label=name, color=color)
        axis.bar_label(drawn, [f'{v:.{digits}f}' for _, v in known], fontsize=7, padding=1)
    axis.set_xticks(range(len(groups)), groups)
    for side in ('top', 'right'):
        axis.spines[side].set_visible(False)
    axis.margins(y=0.35)  # room for the legend
    axis.legend(frameon=False, fontsize=8, ncols=2)


def log_axes(axis: Any, counts: Sequence[float]) -> None:
    """Logarithmic in both, with ticks at `counts`."""
    axis.set_xscale('log', base=2)
    axis.set_yscale('log')
    axis.set_xticks(counts, [str(count) for count in counts])
    axis.minorticks_off()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter('{x:,.6g}')


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f'wrote {path}')
