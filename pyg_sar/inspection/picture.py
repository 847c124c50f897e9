"""A partition as a picture: who reads how many rows from whom, and how even the parts are."""

from __future__ import annotations

import os
from typing import Any

from pyg_sar.partitioner.write.summary import PartitionSummary

_MOST_NUMBERS = 12  # parts, up to which every cell of the heat map has its number


def draw_partition(summary: PartitionSummary, path: str | os.PathLike[str]) -> None:
    """Draws the rows exchanged as a heat map, and the sizes of the parts as bars.

    Args:
        summary: The partition.
        path: The picture to write; its suffix says the format.

    Raises:
        ValueError: If matplotlib is not installed, or does not know the format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            f"a picture needs the package 'matplotlib' (got: {error}); "
            "install it with pip install 'pyg_sar[plot]'"
        ) from error
    figure = Figure(figsize=(12, 5), layout='constrained')  # without a window, whatever the backend
    figure.suptitle(
        f'{summary.num_nodes:,} nodes and {summary.num_edges:,} edges in {summary.num_parts} parts '
        f'({summary.method}), {summary.edge_cut / max(summary.num_edges, 1):.1%} of the edges cut'
    )
    left, right = figure.subplots(1, 2)
    _heat_map(figure, left, summary)
    _bars(right, summary)
    figure.savefig(path, dpi=120)


def _heat_map(figure: Any, axis: Any, summary: PartitionSummary) -> None:
    rows = summary.halo_rows
    image = axis.imshow(rows, cmap='Blues', vmin=0)
    axis.set_title('rows exchanged per layer')
    axis.set_xlabel('sent by part')
    axis.set_ylabel('read by part')
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axis, shrink=0.8)
    if summary.num_parts > _MOST_NUMBERS:
        return
    style = {'ha': 'center', 'va': 'center', 'fontsize': 8}
    darkest = max(map(max, rows))
    for reader, row in enumerate(rows):
        for sender, count in enumerate(row):
            color = 'white' if count > darkest / 2 else 'black'
            axis.text(sender, reader, f'{count:,}', color=color, **style)


def _bars(axis: Any, summary: PartitionSummary) -> None:
    series = {
        'own nodes': summary.part_num_nodes,
        'edges': summary.part_num_edges,
        'halo rows': tuple(map(sum, summary.halo_rows)),
        'boundary rows': summary.boundary_rows,
    }
    width = 0.84 / len(series)
    for number, (name, sizes) in enumerate(series.items()):
        mean = sum(sizes) / len(sizes)
        places = [p + (number - (len(series) - 1) / 2) * width for p in range(len(sizes))]
        axis.bar(places, [size / mean if mean else 0 for size in sizes], width, label=name)
    axis.axhline(1, color='0.3', linewidth=0.8)
    axis.set_title('balance: size of each part, mean part = 1')
    axis.set_xlabel('part')
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.margins(y=0.25)  # room for the legend
    axis.legend(frameon=False, ncols=2)
    axis.spines[['top', 'right']].set_visible(False)
