"""A partition as a picture: who reads how many rows from whom, and how even the parts are."""

from __future__ import annotations

import os
from typing import Any

from pyg_sar.commands.pictures import heat_map, new_figure, save
from pyg_sar.partitioner.write.summary import PartitionSummary


def draw_partition(summary: PartitionSummary, path: str | os.PathLike[str], text: str) -> None:
    """Draws the rows exchanged as a heat map, and the sizes of the parts as bars.

    It writes a picture or a page (.html) with `text` below; the suffix of `path` says the format.
    Raises ValueError if matplotlib is not installed, or does not know it.
    """
    figure = new_figure(12, 5)
    title = (
        f'{summary.num_nodes:,} nodes and {summary.num_edges:,} edges in {summary.num_parts} parts '
        f'({summary.method}), {summary.edge_cut / max(summary.num_edges, 1):.1%} of the edges cut'
    )
    left, right = figure.subplots(1, 2)
    heat_map(figure, left, summary.halo_rows)
    left.set_title('rows exchanged per layer')
    left.set_xlabel('sent by part')
    left.set_ylabel('read by part')
    left.yaxis.get_major_locator().set_params(integer=True)
    _bars(right, summary)
    save(figure, path, title, text)


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
