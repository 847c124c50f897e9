"""Pictures of the benchmarks: grouped bars, and lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt

COLORS = ('#1f5fa8', '#dd8452', '#55a868', '#c44e52', '#8172b3', '#937860', '0.5', '0.75')


def panels(count: int, title: str, width: float = 5.8) -> tuple[Any, list[Any]]:
    """A figure with `count` axes side by side."""
    figure, axes = plt.subplots(
        1, count, figsize=(max(width * count, 7), 4.6), squeeze=False, layout='constrained'
    )
    figure.suptitle(title)
    for axis in axes[0]:
        axis.grid(True, axis='y', alpha=0.3)
        axis.set_axisbelow(True)
    return figure, list(axes[0])


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
        drawn = axis.bar(
            places, [v for _, v in known], width, label=name, color=COLORS[number % len(COLORS)]
        )
        axis.bar_label(drawn, [f'{v:.{digits}f}' for _, v in known], fontsize=7, padding=1)
    axis.set_xticks(range(len(groups)), groups)
    for side in ('top', 'right'):
        axis.spines[side].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    plt.close(figure)
    print(f'wrote {path}')
