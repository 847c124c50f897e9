"""A rank whose network is cut while it lives: a cable is pulled, or its connections are reset.

Three ranks are in network namespaces of their own, made by this file as a program.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_cells import started
from fault_program import TIMEOUT, WORLD_SIZE, Cell, run, wait_for
from networks import ALONE, connect, ip, make_network, on_machine, why_no_networks
from small_graphs import cut, small_graph
from started import output

SLACK = 20.0  # seconds, on a busy machine
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
    make_network()
    print(json.dumps([_cut(folder, i, *case) for i, case in enumerate(CASES)]))


def _cut(root: Path, number: int, how: str, store: str, faulty: int) -> dict[str, Any]:
    folder = root / f'case-{number}'
    folder.mkdir()
    # Names and addresses of its own: the last case's go when the kernel gets to it, and answer.
    net = f'10.7.{number}'
    where = f'file://{folder}/store' if store == 'file' else f'tcp://{net}.1:29500'
    with started(_CONTEXT, _run_rank, folder, how, where, faulty) as ranks:
        for i, rank in enumerate(ranks):
            wait_for(folder / f'started-{i}')
            connect(rank.pid, f'v{number}-{i}', f'{net}.{i + 1}')
        (folder / 'ready').touch()
        wait_for(folder / 'cut me off')
        start = time.monotonic()
        if how == 'silently':
            ip(f'link set v{number}-{faulty} down')
        else:
            on_machine(ranks[faulty].pid, 'ss --kill -t')
        (folder / 'cut off').touch()
        for rank in ranks:
            rank.join(120)
        codes = [rank.exitcode for rank in ranks]
    ends = [json.loads((folder / f'end-{i}').read_text()) for i in range(WORLD_SIZE)]
    for end in ends:
        end['seconds'] = end.pop('time') - start
    return {'ends': ends, 'codes': codes}


def _run_rank(rank: int, folder: Path, how: str, where: str, faulty: int) -> None:
    """The program of a rank, in a network of its own."""
    ctypes.CDLL(None).unshare(_CLONE_NEWNET)
    (folder / f'started-{rank}').touch()
    wait_for(folder / 'ready')
    os.environ['GLOO_SOCKET_IFNAME'] = 'eth0'
    run(rank, str(folder), Cell(how, 'forward'), sys.path, faulty, where)


@pytest.mark.bench
def test_a_rank_is_cut_off(tmp_path: Path) -> None:
    if why := why_no_networks():
        pytest.skip(why)
    cut(small_graph(), 3, tmp_path / 'parts')
    outcomes = json.loads(output([*ALONE, 'python', __file__, tmp_path]).splitlines()[-1])
    for (how, _, faulty), found in zip(CASES, outcomes, strict=True):
        assert all(code == 1 for code in found['codes']), found
        for rank, end in enumerate(found['ends']):
            assert end['type'] == 'ExchangeError', found
            limit = SLACK + (TIMEOUT if how == 'silently' else 0)
            assert end['seconds'] < limit, found
            if rank != faulty:
                words = 'was silent for too long' if how == 'silently' else 'has ended or is cut'
                # In a collective all lose each other, so it is not known which of them is cut off.
                assert end['peer'] in (faulty, None), found
                assert words in end['text'], found


if __name__ == '__main__':
    main(Path(sys.argv[1]))
