"""Writes a folder of torch.distributed.checkpoint, every rank its share, without sending pickles.

``torch.distributed.checkpoint.save`` sends the plans of the ranks as pickles, which may run code
where they arrive. But the state is the same on all ranks, so each can make the plans of all by
itself; only where the tensors then lie has to travel, in names and numbers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from pyg_sar.checkpoint.all_or_none import on_rank_0, together, world
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
    own, num_ranks = world()
    metadata: Any = None
    indices: dict[str, MetadataIndex] = {}

    def write_share() -> list[tuple[str, int, tuple[str, int, int]]]:
        nonlocal metadata
        planner.set_up_planner(state, writer.storage_meta(), is_coordinator=own == 0)
        writer.set_up_storage_writer(own == 0)
        whole = writer.prepare_local_plan(planner.create_local_plan())
        shared = replace(whole, items=[item for item in whole.items if item.index.fqn != TRAINING])
        plans, metadata = planner.create_global_plan([whole, *[shared] * (num_ranks - 1)])
        plans = writer.prepare_global_plan(plans)
        indices.update({item.index.fqn: item.index for plan in plans for item in plan.items})
        written = writer.write_data(planner.finish_plan(plans[own]), planner)
        written.wait()
        told = [(r.index.fqn, r.size_in_bytes, r.storage_data) for r in written.value()]
        return [(name, size, (at.relative_path, at.offset, at.length)) for name, size, at in told]

    results = [
        [WriteResult(indices[name], size, _StorageInfo(*place)) for name, size, place in of_rank]
        for of_rank in together(write_share)
    ]
    on_rank_0(lambda: writer.finish(metadata, results))
