"""The cut of a graph, kept beside its file for the next run."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.sources.sources import load_source
from pyg_sar.shard.format.checksums import file_checksum

_TENSORS_OF_A_LAYER = 6  # its input, output, aggregate, one remote block, and two under way
_EDGE_BYTES = 48  # ids, how they are sorted, and one number of a message


def cut_beside(
    path: Path, model: torch.nn.Module, memory: int, num_parts: int | None, *, progress: bool
) -> Path:
    """The partition folder of a graph, cut now if there is none of this file.

    Its name has a checksum of the file, so a graph that has changed is cut anew.

    Args:
        path: A file as ``python -m pyg_sar.partition`` takes it, or a partition folder.
        model: Its widest parameter is taken for the width of its layers.
        memory: Bytes, of which a part may take half.
        num_parts: None to choose it.
        progress: Whether to show progress.
    """
    if (path / 'META.json').is_file():
        return path
    if not path.is_file():
        raise FileNotFoundError(f'no such file: {path}')
    checksum = file_checksum(path)
    data = load_source(path, scratch=Scratch(path.parent))
    if num_parts is None:
        num_parts = _num_parts(data, model.parameters(), memory)
    root = path.with_name(f'{path.name}.parts-{num_parts}-{checksum[:16]}')
    if not (root / 'META.json').is_file():
        partition_graph(data, num_parts, root, progress=progress)
    return root


def _num_parts(
    data: Data | HeteroData, parameters: Iterable[torch.nn.Parameter], memory: int
) -> int:
    """So many that the tensors of one layer of a part take half of the memory."""
    shapes = [(*p.shape, p.element_size()) for p in parameters if p.dim() > 0]
    row_bytes = max((max(shape[:-1]) * shape[-1] for shape in shapes), default=0)
    num_edges = sum(store['edge_index'].size(1) for store in data.edge_stores)
    num_nodes = int(data.num_nodes or 0)
    num_bytes = _TENSORS_OF_A_LAYER * num_nodes * row_bytes + _EDGE_BYTES * num_edges
    return min(max(ceil(2 * num_bytes / memory), 1), max(num_nodes, 1))
