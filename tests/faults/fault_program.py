"""A training program of three ranks, one of which fails at a chosen point."""

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
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import take_device
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_sar
import pyg_sar.rows.load

WORLD_SIZE, FAULTY = 3, 2
TIMEOUT = 10.0  # of the exchanges before the fault, in seconds
GROUP_TIMEOUT = 20.0  # of the default group, until then
LIMIT = 150.0  # seconds until a run counts as hanging
FAULTS = ('killed', 'stopped', 'raises', 'raises, lives on', 'cut off', 'out of memory', 'shape')
BY_OTHERS = ('silently', 'by a reset')  # cut off, by whoever has made the network
PHASES = ('load', 'construction', 'forward', 'backward', 'optimizer', 'checkpoint')


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


def default_convs() -> list[torch.nn.Module]:
    return [SAGEConv(6, 8), GATConv(8, 4, heads=2), GCNConv(8, 3)]


def run(
    rank: int,
    folder: str,
    fault: str,
    phase: str,
    backend: str,
    path: Any,
    faulty: int = FAULTY,
    store: str = '',
) -> None:
    """What a rank does: trains, and notes in a file what it ends with."""
    sys.path[:] = path
    torch.set_num_threads(1)
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    fails = rank == faulty
    place = Path(folder)
    store = store or f'file://{place}/store'
    stacks = (place / f'stacks-{rank}').open('w')
    faulthandler.dump_traceback_later(LIMIT / 2, file=stacks)

    def at(now: str) -> None:
        if fails and now == phase and at.armed:  # type: ignore[attr-defined]
            (place / 'fault').write_text(str(time.monotonic()))
            _fail(fault, place)

    at.armed = True  # type: ignore[attr-defined]
    try:
        _train(rank, place, at, backend, fault if fails else '', phase, store)
    except BaseException as error:
        found = {
            'time': time.monotonic(),
            'type': type(error).__name__,
            'text': str(error),
            'peer': getattr(error, 'peer', None),
            'layer': getattr(error, 'layer', ''),
        }
        (place / f'end-{rank}').write_text(json.dumps(found))
        if fails and fault == 'raises, lives on':
            time.sleep(LIMIT)
        raise


def _train(
    rank: int, place: Path, at: Any, backend: str, fault: str, phase: str, store: str
) -> None:
    device = 'cuda' if 'nccl' in backend else 'cpu'
    if device == 'cuda':
        take_device(rank, WORLD_SIZE)
    dist.init_process_group(
        backend,
        init_method=store,
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=GROUP_TIMEOUT),
    )
    dist.barrier()  # a rank that ends while others connect is torch's affair
    read = pyg_sar.rows.load.read_shard

    def reading(*args: Any, **kwargs: Any) -> Any:
        at('load')
        return read(*args, **kwargs)

    shape = phase if fault == 'shape' else ''
    parts = 'others' if shape == 'load' else 'parts'
    with mock.patch.object(pyg_sar.rows.load, 'read_shard', reading):
        data = pyg_sar.load_shard(place.parent / parts).to(device)
    torch.manual_seed(0)
    layers = default_convs()
    if shape == 'construction':
        layers[2] = GCNConv(8, 4)
    net = Net(layers, at).double().to(device)
    dist.barrier()  # all have come as far as this
    at('construction')
    model = pyg_sar.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at.armed = False
    for epoch in range(5):
        at.armed = epoch == 2
        if at.armed:  # all have come as far as this, and done what takes seconds once
            pyg_sar.DistributedDataParallel(model.module, timeout=TIMEOUT)
        x = data.x
        if at.armed and shape == 'forward':
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


def _fail(fault: str, place: Path) -> None:
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
