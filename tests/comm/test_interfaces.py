"""What listens where: docs/security.md tells users, and here it is looked up."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from ports import free_port
from ranks import run_once

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='/proc tells what listens')

PAGE = Path(__file__).parents[2] / 'docs' / 'security.md'
LOOPBACK = {'127.0.0.1'}


def _listening() -> set[str]:
    """The addresses at which this process accepts connections."""
    own = set()
    for descriptor in Path('/proc/self/fd').iterdir():
        try:
            own.add(os.readlink(descriptor))
        except OSError:  # the one of the listing itself
            continue
    found = set()
    for table in ('tcp', 'tcp6'):
        for line in Path(f'/proc/net/{table}').read_text(encoding='ascii').splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == '0A' and f'socket:[{rest[5]}]' in own:
                found.add(_address(local.split(':')[0]))
    return found


def _address(digits: str) -> str:
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, b''.join(words))


def _store_by_name() -> set[str]:
    before = _listening()
    store = dist.TCPStore('127.0.0.1', 0, 1, is_master=True)
    found = _listening() - before
    assert store.port > 0
    return found


def test_torchs_store_listens_everywhere() -> None:
    """Whatever its name is; docs/security.md says so. Should that change one day, so must it."""
    (found,) = run_once(_store_by_name, 1)
    assert found and found <= {'::', '0.0.0.0'}  # noqa: PT018


def _program() -> str:
    text = PAGE.read_text(encoding='utf-8').split('<!-- security-example -->')[1]
    return text.split('```python')[1].split('```')[0]


def _as_in_the_page(rank: int, port: int, pipe: Any) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port)
    )
    os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
    exec(_program(), {})
    dist.barrier()
    pipe.send(_listening())
    dist.barrier()


def test_the_program_of_the_page() -> None:
    """Store and gloo together listen on loopback alone."""
    context = multiprocessing.get_context('forkserver')
    port = free_port()
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=_as_in_the_page, args=(rank, port, theirs), daemon=True)
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        assert [pipe.poll(300) and pipe.recv() for pipe in pipes] == [LOOPBACK, LOOPBACK]
    finally:
        for process in processes:
            process.kill()
            process.join()
