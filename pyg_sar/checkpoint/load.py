"""``load_checkpoint``: every rank reads what all share, and its rows of the tables."""

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

from pyg_sar.checkpoint import files, states
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.vote import on_rank_0, raise_on_all
from pyg_sar.nn.dropout_forward import of_model


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


@collective('load_checkpoint', 'all ranks raise if one of them does')
def load_checkpoint(
    root: str | os.PathLike[str],
    model: torch.nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    *,
    loader: Stateful | None = None,
) -> Checkpoint | None:
    """Sets model, optimizer, scheduler, loader and random states to those of the newest checkpoint.

    Training then goes on as if it had never stopped. With the same number of ranks and
    parts, on one thread, it has the same bits. With another number results agree up to rounding,
    but random numbers differ: random states (torch, NumPy, Python) are set only if the same number
    of ranks wrote the checkpoint. Dropout then draws other masks, unless the model has a
    ``dropout_seed``.

    All ranks load the same checkpoint, the newest complete one that rank 0 sees. Nothing in the
    folder is run: only tensors and plain values are read, all else raises an error. The model may
    be a plain one, as in evaluation on one machine.

    At the beginning of a program::

        last = pyg_sar.load_checkpoint('run/', model, optimizer)  # None the first time
        first_epoch = 0 if last is None else last.epoch + 1

    Args:
        root: The folder given to :func:`save_checkpoint`, or one checkpoint; all ranks see it.
        model: A model, or torch's DistributedDataParallel around it.
        optimizer: None to change neither optimizer, nor scheduler, nor random states.
        scheduler: Of the optimizer.
        loader: A :class:`pyg_sar.NeighborLoader` or :class:`pyg_sar.LinkNeighborLoader` with the
            arguments of the saved one, before it is iterated: the next loop over it has the batches
            that were left, and after the last one those of the next epoch.

    Returns:
        The rest of the checkpoint, such as its epoch; None on all ranks before the first one.

    Raises:
        ValueError: On all ranks, if the checkpoint is of another model, optimizer or scheduler, or
            of another graph whose nodes a :class:`pyg_sar.NodeEmbedding` has (with the first
            difference; nothing has been changed then), has no state of a scheduler or of a loader
            that is given, holds other than tensors and plain values, or is of another format (with
            the version that wrote it).
        OSError: On all ranks, if one of them cannot read it.
    """
    if scheduler is not None and optimizer is None:
        raise ValueError("'scheduler' needs 'optimizer', whose learning rates it sets (got None)")
    root = Path(root)
    name = on_rank_0(lambda: files.newest(root))
    if name is None:
        return None
    folder, saved = root / name, dict[str, Any]()
    holders = {'model': model, 'optimizer': optimizer, 'scheduler': scheduler, 'loader': loader}

    def read() -> files.About:
        about = files.read_about(folder, root)
        wanted = [kind for kind, holder in holders.items() if holder is not None]
        for state in [*wanted, 'extra', *(['dropout', 'random'] if optimizer is not None else [])]:
            if state not in about.states:
                raise ValueError(f"{folder} is not of this run: expected the state of '{state}'")
            saved[state] = files.read_state(folder, root, state)
        states.check_holders(optimizer=optimizer, scheduler=scheduler, loader=loader)
        with _of_this_run(folder):
            of_states = [key for key in about.tables if key.split('.')[0] in saved]
            tables = {key: states.entry_of(key, saved) for key in of_states}
            for key, (values, entry) in tables.items():
                values[entry] = files.read_table(folder, root, key, about.tables[key])
            states.check_model(model, saved['model'], about.graphs)
            states.keep_own_rows(model, optimizer, saved)
            for values, entry in tables.values():  # no file stays mapped
                values[entry] = values[entry].clone()
            # Copies raise as the originals would; what they set is only theirs.
            set_loader_and_optimizer(copy.copy(loader), copy.copy(optimizer))
            if scheduler is not None:
                states.check_scheduler(scheduler, saved['scheduler'])
        return about

    def set_loader_and_optimizer(loader: Stateful | None, optimizer: Optimizer | None) -> None:
        if loader is not None:
            loader.load_state_dict(saved['loader'])
        if optimizer is not None:
            states.set_optimizer_state(optimizer, saved['optimizer'])

    def apply() -> None:
        with _of_this_run(folder):
            set_loader_and_optimizer(loader, optimizer)
            if scheduler is not None:
                states.set_scheduler_state(scheduler, saved['scheduler'])
            plain = states.plain_model(model)
            plain.load_state_dict(saved['model'])
            if optimizer is not None:
                for path, dropout in of_model(plain).items():
                    dropout.step = saved['dropout'].get(path, dropout.step)
                if world_size() == about.num_ranks:
                    states.set_random_states(saved['random'][rank()])

    about = raise_on_all(read)
    raise_on_all(apply)
    return Checkpoint(folder, about.epoch, saved['extra'], about.num_ranks)


@contextmanager
def _of_this_run(folder: Path) -> Iterator[None]:
    """Names the folder in errors: plain values that are no state of training fail in many ways."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as e:
        raise ValueError(f'{folder} is not of this run: {e}') from e
