"""``save_checkpoint``: rank 0 writes what all ranks share, every rank its rows of the tables."""

from __future__ import annotations

import operator
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pyg_sar.checkpoint import files, states
from pyg_sar.checkpoint.files import write_state
from pyg_sar.checkpoint.row_files import Table, create_npy, write_npy
from pyg_sar.comm.errors import collective
from pyg_sar.comm.ranks import world_size
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
        for name, number in (('epoch', epoch), ('keep', keep)):
            if not hasattr(number, '__index__'):
                raise ValueError(f"'{name}' must be a whole number (got {number!r})")
        if optimizer is None:
            raise ValueError("'optimizer' must be the one that trains the model (got None)")
        states.check_holders(optimizer=optimizer, scheduler=scheduler, loader=loader)
        if operator.index(epoch) < 0:
            raise ValueError(f"'epoch' must not be negative (got {epoch})")
        if operator.index(keep) < 1:
            raise ValueError(f"'keep' must be at least 1 (got {keep})")
        held['dropout'] = {path: dropout.step for path, dropout in of_model(plain).items()}
        if scheduler is not None:
            held['scheduler'] = states.scheduler_state(scheduler)
        if loader is not None:
            held['loader'] = loader.state_dict()
        held['model'] = dict(plain.state_dict())
        held['optimizer'] = states.optimizer_state(optimizer)
        for key, values, name, weight in states.entries_of_rows(model, optimizer, held):
            tables[key] = states.table_of(key, values.pop(name), weight, optimizer)
        sums = sums_of(common(plain.named_parameters()))
        return operator.index(epoch), held.get('loader'), states.random_states(), sums

    def write_states() -> None:
        for name, state in held.items():
            write_state(new, name, state)
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
