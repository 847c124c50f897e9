"""Three ranks in network namespaces of their own, one of which is cut off.

unshare -Urn python tests/faults/cut_network.py FOLDER
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fault_program import WORLD_SIZE, Cell, run, wait_for

CASES = [
    ('silently', 'file', 2),
    ('silently', 'tcp', 2),
    ('silently', 'tcp', 0),  # who holds the store
    ('by a reset', 'file', 2),
]
"""How a rank is cut off, what the ranks meet by, and which it is."""

_CONTEXT = multiprocessing.get_context('fork')
_CLONE_NEWNET = 0x40000000


def main(folder: Path) -> None:
    """Builds the network and prints how the ranks end in every case."""
    torch.set_num_threads(1)
    _ip('link set lo up')
    _ip('link add br0 type bridge')
    _ip('link set br0 up')
    print(json.dumps([_cut(folder, i, *case) for i, case in enumerate(CASES)]))


def _cut(root: Path, number: int, how: str, store: str, faulty: int) -> dict[str, Any]:
    folder = root / f'case-{number}'
    folder.mkdir()
    # Names and addresses of its own: the last case's go when the kernel gets to it, and answer.
    net = f'10.7.{number}'
    where = f'file://{folder}/store' if store == 'file' else f'tcp://{net}.1:29500'
    ranks = [
        _CONTEXT.Process(target=_run_rank, args=(i, folder, how, where, faulty))
        for i in range(WORLD_SIZE)
    ]
    for rank in ranks:
        rank.start()
    try:
        for i, rank in enumerate(ranks):
            wait_for(folder / f'started-{i}')
            _ip(f'link add v{number}-{i} type veth peer name eth0 netns {rank.pid}')
            _ip(f'link set v{number}-{i} master br0 up')
            address = f'addr add {net}.{i + 1}/24 dev eth0'
            for line in (address, 'link set eth0 up', 'link set lo up'):
                _run(f'nsenter -t {rank.pid} -n ip {line}')
        (folder / 'ready').touch()
        wait_for(folder / 'cut me off')
        start = time.monotonic()
        if how == 'silently':
            _ip(f'link set v{number}-{faulty} down')
        else:
            _run(f'nsenter -t {ranks[faulty].pid} -n ss --kill -t')
        (folder / 'cut off').touch()
        for rank in ranks:
            rank.join(120)
        codes = [rank.exitcode for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    ends = [json.loads((folder / f'end-{i}').read_text()) for i in range(WORLD_SIZE)]
    for end in ends:
        end['seconds'] = end.pop('time') - start
    return {'ends': ends, 'codes': codes}


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def _ip(arguments: str) -> None:
    _run(f'ip {arguments}')


def _run_rank(rank: int, folder: Path, how: str, where: str, faulty: int) -> None:
    """The program of a rank, in a network of its own."""
    ctypes.CDLL(None).unshare(_CLONE_NEWNET)
    (folder / f'started-{rank}').touch()
    wait_for(folder / 'ready')
    os.environ['GLOO_SOCKET_IFNAME'] = 'eth0'
    run(rank, str(folder), Cell(how, 'forward'), sys.path, faulty, where)


if __name__ == '__main__':
    main(Path(sys.argv[1]))
