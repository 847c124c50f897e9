"""The cut of a graph, kept beside its file for the next run."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from pathlib import Path

import torch

from pyg_sar.partitioner import partition_graph
from pyg_sar.partitioner.on_disk.mapped import Scratch
from pyg_sar.partitioner.sources.sources import load_source
from pyg_sar.shard.format.checksums import file_checksum
from pyg_sar.shard.format.file_names import META_FILE
from pyg_sar.shard.format.meta import read_meta

_TENSORS_OF_A_LAYER = 6  # its input, output, aggregate, one remote block, and two under way
_EDGE_BYTES = 48  # ids, how they are sorted, and one number of a message
_METIS_EDGE_BYTES = 93  # as measured: benchmarks/partition


class Cuts:
    """Cuts of a graph, which are kept beside its file.

    Their names have a checksum of the file, so a graph that has changed is cut anew. METIS may take
    `memory` bytes; where it needs more, nodes are streamed into parts.
    """

    def __init__(self, path: Path, memory: int, *, progress: bool) -> None:
        if not path.is_file():
            raise FileNotFoundError(f'no such file: {path}')
        self._path, self._memory, self._progress = path, memory, progress
        self._checksum = file_checksum(path)[:16]
        self._data = load_source(path, scratch=Scratch(path.parent))
        self.num_nodes = int(self._data.num_nodes or 0)
        self._num_edges = sum(store['edge_index'].size(1) for store in self._data.edge_stores)

    def of(self, num_parts: int) -> tuple[Path, bool]:
        """The partition folder of so many parts, and whether it was made now."""
        root = self._folder(str(num_parts))
        is_new = not (root / META_FILE).is_file()
        if is_new:
            has_room = self._num_edges * _METIS_EDGE_BYTES <= self._memory
            method = 'metis' if has_room else 'fennel'
            partition_graph(self._data, num_parts, root, method=method, progress=self._progress)
        return root, is_new

    def first(self, parameters: Iterable[torch.nn.Parameter]) -> int:
        """How many parts to try first.

        So many that the tensors of a layer of one part are about the memory, as wide as the widest
        parameter; or up to twice as many, if such a cut is there.
        """
        shapes = [(*p.shape, p.element_size()) for p in parameters if p.dim() > 0]
        row_bytes = max((max(shape[:-1]) * shape[-1] for shape in shapes), default=0)
        num_bytes = _TENSORS_OF_A_LAYER * self.num_nodes * row_bytes
        num_bytes += _EDGE_BYTES * self._num_edges
        least = min(max(ceil(num_bytes / self._memory), 1), max(self.num_nodes, 1))
        there = [
            read_meta(root).num_parts for root in self._path.parent.glob(self._folder('*').name)
        ]
        return min((n for n in there if least <= n <= 2 * least), default=least)

    def _folder(self, num_parts: str) -> Path:
        return self._path.with_name(f'{self._path.name}.parts-{num_parts}-{self._checksum}')
