"""Writes a folder of torch.distributed.checkpoint, every rank its share, without sending pickles.

``torch.distributed.checkpoint.save`` sends the plans of the ranks as pickles, which may run code
where they arrive. But the state is the same on all ranks, so each can make the plans of all by
itself; what has to travel is where the tensors then lie, in names and numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from pyg_sar.checkpoint.all_or_none import num_ranks, on_rank_0, rank, together
from pyg_sar.checkpoint.states import TRAINING


def write(state: dict[str, Any], folder: Path) -> None:
    """Writes a state and syncs its files (collective).

    Args:
        state: The same tensors on all ranks, which share the writing, and what is no tensor under
            TRAINING, of which rank 0's is written.
        folder: Where; all ranks see it.

    Raises:
        OSError: On all ranks, if one of them cannot write.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    writer = FileSystemWriter(folder, sync_files=True)
    metadata = None

    def write_share() -> list[tuple[Any, ...]]:
        nonlocal metadata
        planner.set_up_planner(state, writer.storage_meta(), is_coordinator=rank() == 0)
        writer.set_up_storage_writer(rank() == 0)
        whole = writer.prepare_local_plan(planner.create_local_plan())
        shared = replace(whole, items=[item for item in whole.items if item.index.fqn != TRAINING])
        plans, metadata = planner.create_global_plan([whole, *[shared] * (num_ranks() - 1)])
        own = writer.prepare_global_plan(plans)[rank()]
        written = writer.write_data(planner.finish_plan(own), planner)
        written.wait()
        return [_as_plain(result) for result in written.value()]

    of_ranks = together(write_share)
    results = [[_result(*told) for told in of_rank] for of_rank in of_ranks]
    assert metadata is not None
    on_rank_0(lambda: writer.finish(metadata, results))


def _as_plain(result: WriteResult) -> tuple[Any, ...]:
    """A result in plain values."""
    index, place = result.index, result.storage_data
    offset = None if index.offset is None else list(index.offset)
    where = place.relative_path, place.offset, place.length
    return (index.fqn, offset, index.index), result.size_in_bytes, where


def _result(index: tuple[Any, ...], num_bytes: int, where: tuple[Any, ...]) -> WriteResult:
    name, offset, number = index
    size = None if offset is None else torch.Size(offset)
    return WriteResult(MetadataIndex(name, size, number), num_bytes, _StorageInfo(*where))
