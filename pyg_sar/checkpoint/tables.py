"""Tables with a row per node in a checkpoint: in the order of ids, each rank a run of them.

Nodes are spread over the ranks as the graph was cut. A checkpoint knows nothing of that: it has one
tensor with the rows of all nodes, as ``torch.nn.Embedding`` has. So a rank writes the rows of a run
of ids, which come from their owners, and reads such a run, from which the owners get them. No rank
ever holds more than its share, as the tensor is written in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from pyg_sar.comm import rank, world_size
from pyg_sar.over_all_nodes import rows
from pyg_sar.own_rows import OwnRows, plain

_PIECE_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a table, on the rank that has them."""

    values: Tensor  # ``[num_rows, ...]``
    n_id: Tensor  # whose rows they are, int64 ``[num_rows]``
    num_nodes: int  # of all ranks

    @classmethod
    def of(cls, weight: OwnRows, values: Tensor) -> Table:
        """Of own rows of a node embedding, or of an optimizer's state of them."""
        return cls(plain(values), weight.n_id.to(weight.device), weight.num_nodes)

    @property
    def shape(self) -> torch.Size:
        """Of the rows of all nodes."""
        return torch.Size([self.num_nodes, *self.values.shape[1:]])

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.values.dtype

    def in_runs(self) -> Table:
        """The rows of this rank's run, from wherever they are (collective)."""
        run = run_of(rank(), self.num_nodes)
        n_id = torch.arange(run.start, run.stop, device=self.values.device)
        return replace(self, values=rows(self.values, n_id, self.n_id), n_id=n_id)


def from_runs(values: Tensor, weight: OwnRows) -> OwnRows:
    """Own rows like those of a weight, of which every rank has read its run (collective)."""
    run = run_of(rank(), weight.num_nodes)
    n_id = torch.arange(run.start, run.stop, device=weight.device)
    own = rows(values.to(weight.device), weight.n_id.to(weight.device), n_id)
    return own.as_subclass(OwnRows)


def run_of(rank: int, num_nodes: int) -> range:
    """The ids whose rows a rank writes and reads."""
    return range(rank * num_nodes // world_size(), (rank + 1) * num_nodes // world_size())


class SavePlanner(DefaultSavePlanner):
    """Also writes tables: given by name, with the rows of this rank's run."""

    def __init__(self, tables: dict[str, Table]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._tables = tables

    def items_of(self, rank: int) -> Iterator[WriteItem]:
        """The pieces of tables that a rank writes."""
        for name, table in self._tables.items():
            run, columns = run_of(rank, table.num_nodes), table.shape[1:]
            row_bytes = columns.numel() * table.values.element_size()
            most = max(1, _PIECE_BYTES // max(1, row_bytes))
            for start in run[::most]:
                offsets = torch.Size([start, *[0] * len(columns)])
                sizes = torch.Size([min(most, run.stop - start), *columns])
                properties = TensorProperties.create_from_tensor(table.values)
                chunk = ChunkStorageMetadata(offsets, sizes)
                data = TensorWriteData(chunk, properties, table.shape)
                yield WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=data)

    def resolve_data(self, write_item: WriteItem) -> Any:
        """What is written for an item."""
        table, data = self._tables.get(write_item.index.fqn), write_item.tensor_data
        if table is None or data is None:
            return super().resolve_data(write_item)
        start = data.chunk.offsets[0] - run_of(rank(), table.num_nodes).start
        return table.values[start : start + data.chunk.sizes[0]]
