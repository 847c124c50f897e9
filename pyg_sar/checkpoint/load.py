"""Reads a checkpoint."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_sar.checkpoint import states
from pyg_sar.checkpoint.all_or_none import on_rank_0, together
from pyg_sar.checkpoint.folders import complete
from pyg_sar.checkpoint.reader import read_metadata, read_values
from pyg_sar.checkpoint.tables import from_runs, run_of
from pyg_sar.comm import in_call, rank
from pyg_sar.dropout import of_model
from pyg_sar.own_rows import OwnRows


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds beside the states that :func:`load_checkpoint` has set.

    Attributes:
        path: Its folder.
        epoch: As given to :func:`save_checkpoint`.
        extra: As given to :func:`save_checkpoint` on rank 0.
        num_ranks: How many ranks wrote it. With as many, random states were set, too.
    """

    path: Path
    epoch: int
    extra: dict[str, Any]
    num_ranks: int


@in_call('load_checkpoint')
def load_checkpoint(
    root: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    *,
    loader: Stateful | None = None,
) -> Checkpoint | None:
    """Sets model, optimizer, scheduler, loader and random states to those of the newest checkpoint.

    Collective. Training then goes on as if it had never stopped: with the number of ranks and parts
    of before to the last bit (on one thread), with another one up to rounding, apart from what is
    drawn at random: a rank's random states (torch, NumPy, Python's) are set only if as many ranks
    wrote the checkpoint, else dropout draws other masks, unless the model has a ``dropout_seed``.

    All ranks load the same checkpoint, the newest complete one that rank 0 sees. Nothing in the
    folder is run: what is no tensor or plain value raises an error. The model may be a plain one,
    as in evaluation on one machine.

    At the beginning of a program::

        last = pyg_sar.load_checkpoint('run/', model, optimizer)  # None the first time
        first_epoch = 0 if last is None else last.epoch + 1

    Args:
        root: The folder given to :func:`save_checkpoint`, visible to all ranks.
        model: A model, or DistributedDataParallel around it.
        optimizer: None to leave optimizer and scheduler alone, and the random states, too.
        scheduler: Of the optimizer.
        loader: A :class:`pyg_sar.NeighborLoader` or :class:`pyg_sar.LinkNeighborLoader` with the
            arguments of the saved one, before it is iterated: the next loop over it has the batches
            that were left, and after the last one those of the next epoch.

    Returns:
        What else is in it, or None on all ranks if there is no checkpoint.

    Raises:
        ValueError: On all ranks, if the checkpoint is of another model or optimizer (with the first
            difference; nothing has been changed then), has no state of a scheduler or of a loader
            that is given, or holds other than tensors and plain values.
        OSError: On all ranks, if one of them cannot read it.
    """
    if scheduler is not None and optimizer is None:
        raise ValueError("'scheduler' needs 'optimizer', whose learning rates it sets (got None)")
    root = Path(root)
    name = on_rank_0(lambda: next((path.name for path in reversed(complete(root))), None))
    if name is None:
        return None
    folder, saved, made = root / name, dict[str, Any](), list[Checkpoint]()
    tables: dict[str, OwnRows] = {}

    def read() -> None:
        metadata = read_metadata(folder, root)
        with _of_this_run(folder):
            states.check_model(model, metadata)
            if states.TRAINING not in metadata.state_dict_metadata:
                raise ValueError(f"expected '{states.TRAINING}' in it (got none)")
            tables.update(states.tables_in(metadata, model, optimizer))
        runs = {key: run_of(rank(), weight.num_nodes) for key, weight in tables.items()}
        is_wanted = optimizer is not None
        saved.update(read_values(folder, root, metadata, with_optimizer=is_wanted, runs=runs))
        with _of_this_run(folder):
            for given, value in {'scheduler': scheduler, 'loader': loader}.items():
                if value is not None and saved[states.TRAINING].get(given) is None:
                    raise ValueError(f"expected the state of '{given}' (got none)")
            # Copies refuse what they would, and what they set is only theirs.
            set_loader_and_optimizer(copy.copy(loader), copy.copy(optimizer))

    def set_loader_and_optimizer(loader: Stateful | None, optimizer: Optimizer | None) -> None:
        training = saved[states.TRAINING]
        if loader is not None:
            loader.load_state_dict(training['loader'])
        if optimizer is not None:
            states.set_optimizer_state(optimizer, saved, training['optimizer'])

    def apply() -> None:
        with _of_this_run(folder):
            training = saved[states.TRAINING]
            found = training['epoch'], training['extra'], len(training['random'])
            set_loader_and_optimizer(loader, optimizer)
            if optimizer is not None:
                for path, each in of_model(states.plain_model(model)).items():
                    each.step = training.get('dropout', {}).get(path, each.step)
            if scheduler is not None:
                scheduler.load_state_dict(training['scheduler'])
            states.set_model_state(model, saved)
            if optimizer is not None and num_ranks == found[-1]:
                states.set_random_states(training['random'][rank()])
            made.append(Checkpoint(folder, *found))

    num_ranks = len(together(read))
    saved.update({key: from_runs(saved[key], weight) for key, weight in tables.items()})
    together(apply)
    return made[0]


@contextmanager
def _of_this_run(folder: Path) -> Iterator[None]:
    """What is no state of training, but of plain values, fails in any way."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as e:
        raise ValueError(f'{folder} is not of this run: {e}') from e
