"""Programs of three ranks, one of which fails at a chosen point."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from path_programs import place_of, program
from ranks import take_device
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_sar
import pyg_sar.rows.load
from pyg_sar.comm.errors import location
from pyg_sar.comm.process_group import GroupComm
from pyg_sar.comm.ranks import set_timeout
from pyg_sar.nn.options import Mode

WORLD_SIZE, FAULTY = 3, 2
TIMEOUT = 10.0  # of the exchanges before the fault, in seconds
GROUP_TIMEOUT = 20.0  # of the default group, until then
START = 60.0  # of programs of one path, while they are built and run for the first time
LIMIT = 150.0  # seconds until a run counts as hanging
FAULTS = ('killed', 'stopped', 'raises', 'raises, lives on', 'cut off', 'out of memory', 'shape')
BY_OTHERS = ('silently', 'by a reset')  # cut off, by whoever has made the network
PHASES = ('load', 'construction', 'forward', 'backward', 'optimizer', 'checkpoint')
SUM = 'the sum of gradients'


class Cell(NamedTuple):
    """A fault in a phase of a training, or of one of `path_programs`.

    Attributes:
        fault: One of `FAULTS`.
        phase: One of `PHASES`. Of a path ``'forward'``, ``'backward'``, `SUM`, or ``''`` where a
            function is called.
        backend: Of the process group.
        program: The path; none for the training.
        mode: Of the layers of a path.
        when: 0 for the first operation of the phase of a path, 1 for the last.
    """

    fault: str
    phase: str
    backend: str = 'gloo'
    program: str = ''
    mode: Mode = 'sequential'
    when: float = 0.0


class Net(torch.nn.Module):
    """Three convs; the fault happens between the second and the third, each way."""

    def __init__(self, convs: list[torch.nn.Module], at: Callable[[str], None]) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(convs)
        self.at = at

    def forward(self, x: Tensor, *args: Any) -> Tensor:
        x = self.convs[0](x, *args).relu()
        x = self.convs[1](x, *args)
        self.at('forward')
        if x.requires_grad:
            x.register_hook(lambda _: self.at('backward'))
        return self.convs[2](x, *args)


def run(
    rank: int, folder: str, cell: Cell, path: Any, faulty: int = FAULTY, store: str = ''
) -> None:
    """What a rank does: runs a program, and notes in a file what it ends with."""
    sys.path[:] = path
    torch.set_num_threads(1)
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    fails, place = rank == faulty, Path(folder)
    stacks = (place / f'stacks-{rank}').open('w')
    faulthandler.dump_traceback_later(LIMIT / 2, file=stacks)
    try:
        if 'nccl' in cell.backend:
            take_device(rank, WORLD_SIZE)
        dist.init_process_group(
            cell.backend,
            init_method=store or f'file://{place}/store',
            rank=rank,
            world_size=WORLD_SIZE,
            timeout=timedelta(seconds=START if cell.program else GROUP_TIMEOUT),
        )
        dist.barrier()  # a rank that ends while others connect is torch's affair
        (_operate if cell.program else _train)(rank, place, cell, fails)
    except BaseException as error:
        found = {'time': time.monotonic(), 'type': type(error).__name__, 'text': str(error)}
        found |= {name: getattr(error, name, None) for name in ('peer', 'layer', 'operation')}
        (place / f'end-{rank}').write_text(json.dumps(found))
        if fails and cell.fault == 'raises, lives on':
            time.sleep(LIMIT)
        raise


def _train(rank: int, place: Path, cell: Cell, fails: bool) -> None:
    device = 'cuda' if 'nccl' in cell.backend else 'cpu'
    read, is_armed = pyg_sar.rows.load.read_shard, True

    def at(now: str) -> None:
        if fails and is_armed and now == cell.phase:
            _fail(cell.fault, place)

    def reading(*args: Any, **kwargs: Any) -> Any:
        at('load')
        return read(*args, **kwargs)

    shape = cell.phase if fails and cell.fault == 'shape' else ''
    parts = 'others' if shape == 'load' else 'parts'
    with mock.patch.object(pyg_sar.rows.load, 'read_shard', reading):
        data = pyg_sar.load_shard(place.parent / parts).to(device)
    torch.manual_seed(0)
    layers = [SAGEConv(6, 8), GATConv(8, 4, heads=2), GCNConv(8, 3)]
    if shape == 'construction':
        layers[2] = GCNConv(8, 4)
    net = Net(layers, at).double().to(device)
    dist.barrier()  # all have come as far as this
    at('construction')
    model = pyg_sar.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        is_armed = epoch == 2
        if is_armed:  # all have come as far as this, and done what takes seconds once
            pyg_sar.DistributedDataParallel(model.module, timeout=TIMEOUT)
        x = data.x
        if is_armed and shape == 'forward':
            (place / 'fault').write_text(str(time.monotonic()))
            x = torch.cat([x, x])
        out = model(x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        at('optimizer')
        optimizer.step()
        at('checkpoint')
        torch.save(model.state_dict(), place / f'checkpoint-{rank}.pt')


def _operate(rank: int, place: Path, cell: Cell, fails: bool) -> None:
    """Steps of a path. In the second operations are counted, in the third one of them fails."""
    torch.manual_seed(0)
    data = pyg_sar.load_shard(place.parent / 'parts')
    step = program(cell.program)[0](data, cell.mode, START, place)
    step(1)
    wanted, guard, count, last = place_of(cell.program, cell.phase), GroupComm.guard, 0, -1

    @contextlib.contextmanager
    def guarding(self: GroupComm, operation: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        nonlocal count
        with guard(self, operation, *args, **kwargs):
            is_sum = operation.startswith('the sum of the gradients of parameters')
            if is_sum if cell.phase == SUM else not is_sum and location() == wanted:
                if fails and count == last:
                    _fail(cell.fault, place)
                count += 1
            yield

    with mock.patch.object(GroupComm, 'guard', guarding):
        step(2)
        set_timeout(timedelta(seconds=TIMEOUT))  # all have come as far as this
        count, last = 0, round(cell.when * (count - 1))
        step(3)
        step(4)  # nobody may have needed the rank's last operation


def _fail(fault: str, place: Path) -> None:
    (place / 'fault').write_text(str(time.monotonic()))
    if fault in ('killed', 'stopped'):
        os.kill(os.getpid(), signal.SIGKILL if fault == 'killed' else signal.SIGSTOP)
    elif fault == 'out of memory':
        torch.empty(1 << 60, dtype=torch.uint8)
    elif fault == 'cut off':
        _cut_connections()
    elif fault in BY_OTHERS:
        (place / 'cut me off').touch()
        wait_for(place / 'cut off')
    elif fault != 'shape':
        raise ValueError('the model cannot go on')


def _cut_connections() -> None:
    """Every TCP connection of this process breaks."""
    for file in Path('/proc/self/fd').iterdir():
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(int(file.name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(file.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    connection.shutdown(socket.SHUT_RDWR)


def wait_for(file: Path) -> None:
    end = time.monotonic() + 120
    while not file.exists():
        if time.monotonic() > end:
            raise TimeoutError(f'{file} did not appear')
        time.sleep(0.02)
