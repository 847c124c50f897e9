"""``save_checkpoint`` and ``load_checkpoint``.

Rank 0 writes the states that all ranks share, every rank its part of the tables.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_sar.checkpoint import files, states
from pyg_sar.checkpoint.row_files import Table, create_npy, write_npy
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import rank, world_size
from pyg_sar.comm.vote import agree, check_equal, on_rank_0, raise_on_all
from pyg_sar.nn.averager import PARTED
from pyg_sar.nn.buckets import common
from pyg_sar.nn.dropout_forward import of_model
from pyg_sar.nn.wrap import check_values, sums_of
from pyg_sar.utils import __version__


@collective('save_checkpoint', 'ranks write their rows, and meet when all is on the disk')
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

    The checkpoint appears in `root` as ``epoch-000012``, all at once, when its files
    are on the disk; a run that is killed meanwhile leaves the ones before as they were. What it has
    left half written is removed by the next call.

    ``torch.load('run/epoch-000012/model.pt')`` is the ``state_dict()`` of the plain PyG model.
    :func:`load_checkpoint` reads the folder with any number of ranks and parts, or into the plain
    model on one machine. Rows of a :class:`pyg_sar.NodeEmbedding` are beside it, by id, as
    ``model.embedding.weight.npy``; the ranks share the writing.

    At the end of an epoch::

        pyg_sar.save_checkpoint('run/', model, optimizer, epoch=1, extra={'best': 0.7})

    Args:
        root: A folder that all ranks see; made if missing.
        model: A model, or torch's DistributedDataParallel around it.
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
        ValueError: On all ranks, if `epoch` is not larger than the newest one's, if it, parameters
            or the batch that `loader` is at differ between ranks, if `keep` is less than 1, or if
            `extra` or a state holds other than plain values.
        RuntimeError: On all ranks, if another run, which the message tells, is writing to `root`.
        OSError: On all ranks, if one of them cannot write.
    """
    root, plain = Path(root), states.plain_model(model)
    held: dict[str, Any] = {'extra': {} if extra is None else extra}
    tables: dict[str, Table] = {}

    def collect() -> tuple[int, Any, dict[str, Any], dict[str, Any]]:
        if operator.index(epoch) < 0:
            raise ValueError(f"'epoch' must not be negative (got {epoch})")
        if operator.index(keep) < 1:
            raise ValueError(f"'keep' must be at least 1 (got {keep})")
        held['dropout'] = {path: dropout.step for path, dropout in of_model(plain).items()}
        for name, holder in {'scheduler': scheduler, 'loader': loader}.items():
            if holder is not None:
                held[name] = holder.state_dict()
        held['model'] = dict(plain.state_dict())
        held['optimizer'] = states.optimizer_state(optimizer)
        for key, values, name, weight in states.entries_of_rows(model, optimizer, held):
            tables[key] = states.table_of(key, values.pop(name), weight, optimizer)
        sums = sums_of(common(plain.named_parameters()))
        return operator.index(epoch), held.get('loader'), states.random_states(), sums

    def write_states() -> None:
        for name, state in held.items():
            files.write_state(new, name, state)
        dtypes = {key: str(t.values.dtype).removeprefix('torch.') for key, t in tables.items()}
        about = epoch, world_size(), [*held], dtypes, states.graphs(plain), __version__
        files.About(*about).write(new)
        for key, table in tables.items():
            create_npy(files.table_file(new, key), runs[key][0], table.num_nodes)

    def write_runs() -> None:
        if not new.is_dir():
            raise FileNotFoundError(f'expected a folder that all ranks see (got none at {new})')
        for key, (run, first) in runs.items():
            write_npy(files.table_file(new, key), run, first, tables[key].num_nodes)

    of_ranks = agree(raise_on_all(collect))
    epochs, batches, held['random'], sums = map(list, zip(*of_ranks, strict=True))
    check_equal('epoch', epochs)
    epoch = epochs[0]  # NumPy's may not be in a file
    check_equal("state of 'loader'", batches)
    check_values(sums, 'at save_checkpoint', PARTED)
    runs = {key: table.run() for key, table in tables.items()}
    folder = files.folder_of(root, epoch)
    with ExitStack() as stack:
        begin = stack.enter_context
        new = root / on_rank_0(lambda: str(begin(files.begun(root, epoch)).relative_to(root)))
        on_rank_0(write_states)
        raise_on_all(write_runs)
        on_rank_0(lambda: files.publish(new, folder, keep=keep))
    return folder


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
        root: The folder given to :func:`save_checkpoint`, visible to all ranks.
        model: A model, or torch's DistributedDataParallel around it.
        optimizer: None to change neither optimizer, nor scheduler, nor random states.
        scheduler: Of the optimizer.
        loader: A :class:`pyg_sar.NeighborLoader` or :class:`pyg_sar.LinkNeighborLoader` with the
            arguments of the saved one, before it is iterated: the next loop over it has the batches
            that were left, and after the last one those of the next epoch.

    Returns:
        The rest of the checkpoint, such as its epoch; None on all ranks if there is none.

    Raises:
        ValueError: On all ranks, if the checkpoint is of another model or optimizer, or of another
            graph whose nodes a :class:`pyg_sar.NodeEmbedding` has (with the first difference;
            nothing has been changed then), has no state of a scheduler or of a loader that is
            given, holds other than tensors and plain values, or is of another format (with the
            version that wrote it).
        OSError: On all ranks, if one of them cannot read it.
    """
    if scheduler is not None and optimizer is None:
        raise ValueError("'scheduler' needs 'optimizer', whose learning rates it sets (got None)")
    root = Path(root)
    name = on_rank_0(lambda: _newest(root))
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
                scheduler.load_state_dict(saved['scheduler'])
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


def _newest(root: Path) -> str | None:
    if root.is_file():
        raise ValueError(
            f"expected the folder of save_checkpoint in 'root' (got the file '{root}'): "
            'model.load_state_dict(torch.load(file)) loads a state_dict'
        )
    return next((path.name for path in reversed(files.complete(root))), None)
