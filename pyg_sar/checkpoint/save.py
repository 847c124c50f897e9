"""Writes a checkpoint: a folder of torch.distributed.checkpoint, every rank its share.

``torch.distributed.checkpoint.save`` sends the plans of the ranks as pickles, which may run code
where they arrive. But the state is the same on all ranks, so each can make the plans of all by
itself; only where the tensors then lie has to travel, in names and numbers.
"""

from __future__ import annotations

import io
import operator
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.storage import WriteResult
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_sar.checkpoint.all_or_none import on_rank_0, together
from pyg_sar.checkpoint.folders import begin, publish
from pyg_sar.checkpoint.reader import load_plain
from pyg_sar.checkpoint.states import (
    TRAINING,
    model_state,
    optimizer_state,
    plain_model,
    random_states,
)
from pyg_sar.checkpoint.tables import SavePlanner, Table
from pyg_sar.comm import check_equal, in_call, rank, world_size
from pyg_sar.dropout import of_model


@in_call('save_checkpoint')
def save_checkpoint(
    root: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Optimizer,
    *,
    epoch: int,
    scheduler: LRScheduler | None = None,
    loader: Stateful | None = None,
    extra: dict[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Writes a training run: model, optimizer, scheduler, loader and random states, to go on with.

    Collective. The checkpoint appears in `root` as ``epoch-000012``, all at once, when its files
    are on the disk; a run that is killed meanwhile leaves the ones before as they were. What it has
    left half written is removed by the next call.

    It is a folder of ``torch.distributed.checkpoint``: the ranks share the writing. The model's
    keys are those of the plain PyG model, after ``model.``. :func:`load_checkpoint` reads it with
    any number of ranks and parts, or into the plain model on one machine. Rows of a
    :class:`pyg_sar.NodeEmbedding` are in it as ``torch.nn.Embedding`` has them, by id.

    At the end of an epoch::

        pyg_sar.save_checkpoint('run/', model, optimizer, epoch=1, extra={'best': 0.7})

    Args:
        root: A folder that all ranks see; made if missing.
        model: A model, or DistributedDataParallel around it.
        optimizer: Of the model's parameters.
        epoch: How many epochs (or steps) are behind; larger than that of any checkpoint in `root`.
        scheduler: Of the optimizer.
        loader: A :class:`pyg_sar.NeighborLoader` or :class:`pyg_sar.LinkNeighborLoader`, also in
            the middle of its epoch, after a step: the next batch is the first of the run that goes
            on. Count steps in `epoch` then.
        extra: Plain values (numbers, strings, None, tensors, and lists, tuples and dicts of them)
            to be given back by :func:`load_checkpoint`; rank 0's are kept.
        keep: How many checkpoints stay in `root`, with the new one; older ones are removed after it
            is on the disk.

    Returns:
        The folder of the checkpoint.

    Raises:
        ValueError: On all ranks, if `epoch` is not larger than the newest one's, if it or the batch
            that `loader` is at differs between ranks, if `keep` is less than 1, or if `extra` or a
            state holds other than plain values.
        OSError: On all ranks, if one of them cannot write.
    """
    root = Path(root)
    state: dict[str, Any] = {}
    training: dict[str, Any] = {'epoch': epoch, 'extra': {} if extra is None else extra}

    def collect() -> tuple[int, Any, dict[str, Any]]:
        if operator.index(epoch) < 0:
            raise ValueError(f"'epoch' must not be negative (got {epoch})")
        if operator.index(keep) < 1:
            raise ValueError(f"'keep' must be at least 1 (got {keep})")
        tensors, training['optimizer'] = optimizer_state(optimizer)
        training['scheduler'] = None if scheduler is None else scheduler.state_dict()
        training['dropout'] = {
            path: each.step for path, each in of_model(plain_model(model)).items()
        }
        training['loader'] = None if loader is None else loader.state_dict()
        for name, value in training.items():
            _check_plain(name, value)
        state.update(model_state(model) | tensors)
        return operator.index(epoch), training['loader'], random_states()

    def check_visible() -> None:
        if not folder.is_dir():
            raise FileNotFoundError(f'expected a folder that all ranks see (got none at {folder})')

    of_ranks = together(collect)
    epochs, batches, training['random'] = (list(values) for values in zip(*of_ranks, strict=True))
    check_equal('epoch', epoch, epochs)
    check_equal("state of 'loader'", training['loader'], batches)
    state[TRAINING] = training

    folder = root / on_rank_0(lambda: begin(root, epoch).name)
    together(check_visible)
    try:
        _write(state, folder)
        return root / on_rank_0(lambda: publish(folder, keep=keep).name)
    except Exception:
        if rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)  # The disk may be full.
        raise


def _check_plain(name: str, value: object) -> None:
    """Whether it can be read again: that must not turn out when it is needed."""
    content = io.BytesIO()
    try:
        torch.save(value, content)
        content.seek(0)
        load_plain(content)
    except Exception as error:
        raise ValueError(f"'{name}' cannot be saved: {error}") from error


def _write(state: dict[str, Any], folder: Path) -> None:
    """Writes a state and syncs its files (collective).

    The tensors are the same on all ranks, which share the writing, but for tables of nodes; what is
    no tensor is under TRAINING, of which rank 0's is written.
    """
    tables = {k: value.in_runs() for k, value in state.items() if isinstance(value, Table)}
    state = {name: value for name, value in state.items() if name not in tables}
    planner = SavePlanner(tables)
    writer = FileSystemWriter(folder, sync_files=True)
    own, num_ranks = rank(), world_size()
    metadata: Any = None
    indices: dict[Any, MetadataIndex] = {}

    def write_share() -> list[tuple[Any, int, tuple[str, int, int]]]:
        nonlocal metadata
        planner.set_up_planner(state, writer.storage_meta(), is_coordinator=own == 0)
        writer.set_up_storage_writer(own == 0)
        whole = writer.prepare_local_plan(planner.create_local_plan())
        shared = replace(whole, items=[item for item in whole.items if item.index.fqn != TRAINING])
        plans = [
            replace(plan, items=[*plan.items, *planner.items_of(number)])
            for number, plan in enumerate([whole, *[shared] * (num_ranks - 1)])
        ]
        plans, metadata = planner.create_global_plan(plans)
        plans = writer.prepare_global_plan(plans)
        indices.update({_place(item.index): item.index for plan in plans for item in plan.items})
        written = writer.write_data(planner.finish_plan(plans[own]), planner)
        written.wait()
        told = [(_place(r.index), r.size_in_bytes, r.storage_data) for r in written.value()]
        return [(where, size, (at.relative_path, at.offset, at.length)) for where, size, at in told]

    results = [
        [WriteResult(indices[where], size, _StorageInfo(*place)) for where, size, place in of_rank]
        for of_rank in together(write_share)
    ]
    on_rank_0(lambda: writer.finish(metadata, results))


def _place(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    """What tells pieces apart: a name and where the piece begins."""
    return index.fqn, tuple(index.offset or ())
