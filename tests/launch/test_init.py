"""``init`` on ranks, beside a process group of the user's own, and in a process by itself."""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import time
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_as_threads
from small_graphs import attempt
from started import environment
from test_machines import seeing

import pyg_sar
from pyg_sar.comm import collectives
from pyg_sar.launch.init import Process
from pyg_sar.launch.machines import Sight

module = sys.modules['pyg_sar.launch.init']  # hidden by the function
CPU = torch.device('cpu')


@pytest.fixture(autouse=True)
def _by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher has started the tests."""
    set_here = ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'GLOO_SOCKET_IFNAME')
    for name in (*(os.environ.keys() - environment().keys()), *set_here):
        monkeypatch.delenv(name, raising=False)


def test_one_process_needs_no_group() -> None:
    threads = torch.get_num_threads()
    assert pyg_sar.init(timeout=5, interface='eth0') == Process(0, 1, CPU)
    assert pyg_sar.init() == Process(0, 1, CPU)
    assert not dist.is_initialized()
    assert torch.get_num_threads() == threads


def test_contradictions_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('WORLD_SIZE', '3')
    with pytest.raises(ValueError, match='expected RANK beside WORLD_SIZE'):
        pyg_sar.init()


@pytest.mark.parametrize('timeout', [0, -1, 'long'])
def test_wrong_timeout(timeout: Any) -> None:
    with pytest.raises(ValueError, match="'timeout' must be"):
        pyg_sar.init(timeout=timeout)


@pytest.mark.parametrize('ranks_of', [pyg_sar.launch, run_as_threads])
def test_after_a_group_of_the_users_own(monkeypatch: pytest.MonkeyPatch, ranks_of: Any) -> None:
    monkeypatch.setenv('GLOO_SOCKET_IFNAME', 'lo')
    found = ranks_of(_after_a_group, 2, ranks_of is pyg_sar.launch)
    assert found == [Process(rank, 2, CPU) for rank in range(2)]


def _after_a_group(makes_it: bool) -> Process:
    if makes_it:
        dist.init_process_group('gloo')
    for option, value in (('interface', 'lo'), ('timeout', 5)):
        words = rf"'{option}' must be given before there is a process group \(got {value!r}"
        with pytest.raises(ValueError, match=words):
            pyg_sar.init(**{option: value})
    return pyg_sar.init()


def _with_a_timeout() -> int:
    pyg_sar.init(timeout=20)
    with pytest.raises(ValueError, match=r'write pyg_sar.init\(\) here'):
        pyg_sar.init(timeout=21)
    return pyg_sar.init(timeout=20).world_size


def test_twice_with_one_timeout() -> None:
    assert pyg_sar.launch(_with_a_timeout, 2) == [2, 2]


def _joined() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger('pyg_sar')
    logger.addHandler(handler)
    logger.setLevel('INFO')
    found = pyg_sar.init(timeout=30)
    rank = int(os.environ['RANK'])
    assert found == pyg_sar.init() == Process(rank, 3, CPU)
    assert torch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 3)
    assert dist.get_backend_config() == 'cpu:gloo,cuda:gloo'
    assert collectives.all_reduce_sum(torch.ones(2)).tolist() == [3.0, 3.0]
    if sys.platform == 'linux':
        assert os.environ['GLOO_SOCKET_IFNAME'] == 'lo'
    (line,) = [line for line in lines if 'allocator' not in line]
    where = f'{rank + 1} of 3 ranks on {socket.gethostname()}, rank 0 at 127.0.0.1:'
    assert line.startswith(f'[rank {rank}/3] by RANK and WORLD_SIZE, {where}')


def test_joined() -> None:
    pyg_sar.launch(_joined, 3)


def _twice() -> list[float]:
    sums = []
    for _ in range(2):
        process = pyg_sar.init()
        sums.append(float(collectives.all_reduce_sum(torch.tensor([process.rank + 1.0]))))
        dist.destroy_process_group()
    return sums


def test_again_after_the_group_was_destroyed() -> None:
    assert pyg_sar.launch(_twice, 2) == [[3.0, 3.0]] * 2


def _slowly_joined() -> int:
    """Rank 0 ends when it has joined, while others may still connect."""
    connect = dist.init_process_group

    def slowly(*args: Any, **options: Any) -> None:
        time.sleep(0.3 * int(os.environ['RANK']))
        connect(*args, **options)

    dist.init_process_group = slowly
    return pyg_sar.init().rank


def test_ranks_that_end_at_once() -> None:
    assert pyg_sar.launch(_slowly_joined, 3) == [0, 1, 2]


def _threads() -> int:
    pyg_sar.init()
    return torch.get_num_threads()


@pytest.mark.parametrize('name', ['OMP_NUM_THREADS', 'MKL_NUM_THREADS'])
def test_threads_that_the_user_has_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    torch.set_num_threads(5)
    monkeypatch.setenv(name, '5')
    assert pyg_sar.launch(_threads, 2) == [5, 5]


def _with_interface(name: str) -> tuple[str, str | None, str | None]:
    told = attempt(pyg_sar.init, interface=name)
    return told, os.environ.get('GLOO_SOCKET_IFNAME'), os.environ.get('NCCL_SOCKET_IFNAME')


def test_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('GLOO_SOCKET_IFNAME', 'other0')
    assert pyg_sar.launch(_with_interface, 2, 'lo') == [('no error', 'lo', 'lo')] * 2
    for told, *_ in pyg_sar.launch(_with_interface, 2, 'none0'):
        assert "ValueError: 'interface' must be there on every rank's machine (got 'none0'" in told
        assert 'missing on ranks [0, 1]: rank 0 has lo' in told


def _seeing(sights: list[Sight]) -> dict[str, Any]:
    """What is asked of torch where ranks see GPUs."""
    asked: dict[str, Any] = {}
    module.own_sight = lambda: sights[int(os.environ['RANK'])]  # type: ignore[attr-defined]
    torch.cuda.set_device = lambda index: asked.update(device=index)  # type: ignore[assignment]
    init_group = dist.init_process_group

    def noting(backend: str, **options: Any) -> None:
        asked['backend'] = backend
        init_group('gloo', **options)

    dist.init_process_group = noting
    asked['told'] = attempt(pyg_sar.init)
    return asked


@pytest.mark.parametrize(
    ('gpus', 'devices', 'backend'),
    [
        (['AB', 'AB'], [0, 1], 'cpu:gloo,cuda:nccl'),
        (['A', 'B'], [0, 0], 'cpu:gloo,cuda:nccl'),
        (['A', 'A'], [0, 0], 'gloo'),
        (['A', ''], [], ''),
    ],
)
def test_gpus(gpus: list[str], devices: list[int], backend: str) -> None:
    found = pyg_sar.launch(_seeing, 2, [seeing(gpus=each) for each in gpus])
    if devices:
        assert found == [{'told': 'no error', 'device': d, 'backend': backend} for d in devices]
        return
    for each in found:  # all ranks raise
        assert 'expected GPUs for all 2 ranks or for none (got none for ranks [1]' in each['told']
        assert each.keys() == {'told'}


def _late(rank: int) -> str:
    if int(os.environ['RANK']) == rank:
        return ''
    return attempt(pyg_sar.init, timeout=2)


def test_a_rank_that_does_not_come() -> None:
    for rank, told in enumerate(pyg_sar.launch(_late, 3, 1)):
        if rank != 1:
            assert told.startswith('ConnectionError: expected all 3 ranks at MASTER_ADDR=127.0.0.1')
            assert f'as rank {rank} by RANK and WORLD_SIZE' in told


def test_a_port_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(('', 0)) as server:
        port = str(server.getsockname()[1])
        variables = {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost'}
        for name, value in {**variables, 'MASTER_PORT': port}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ConnectionError, match=f'MASTER_PORT={port}.*is the port free'):
            pyg_sar.init(timeout=2)
    assert not dist.is_initialized()


def _one_of_two_jobs() -> str:
    """Ranks 1 of two jobs of two ranks have one rank 0."""
    os.environ.update(WORLD_SIZE='2', RANK=str(min(int(os.environ['RANK']), 1)))
    return attempt(pyg_sar.init, timeout=5)


def test_ranks_of_two_jobs_at_one_port() -> None:
    told = pyg_sar.launch(_one_of_two_jobs, 3)
    assert sum('got another rank 1 there; is this the machine' in text for text in told) == 1


def _failing(error: RuntimeError) -> str:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    module.shares = fail  # type: ignore[attr-defined]
    return attempt(pyg_sar.init)


@pytest.mark.parametrize(
    ('error', 'told'),
    [
        (RuntimeError('CUDA error: out of memory'), 'RuntimeError: CUDA error: out of memory'),
        (RuntimeError(), 'RuntimeError: '),
        (dist.DistStoreError(), 'ConnectionError: expected all 2 ranks at MASTER_ADDR=127.0.0.1'),
        (RuntimeError('[gloo/transport/tcp/pair.cc:1] lost'), 'ConnectionError: expected all 2'),
    ],
)
def test_errors_that_are_not_of_the_network_stay(error: RuntimeError, told: str) -> None:
    for found in pyg_sar.launch(_failing, 2, error):
        assert found.startswith(told)


def _drawn(has_seeds: bool) -> tuple[float, float, float]:
    place = int(os.environ['RANK'])
    random.seed(100 + place)
    np.random.seed(100 + place)  # noqa: NPY002
    torch.manual_seed(100 + place)
    if not has_seeds:  # as processes begin that were not forked
        mock.patch.object(module, '_AT_IMPORT', module._states()).start()
    pyg_sar.init()
    return random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002


def _expected(place: int) -> tuple[float, float, float]:
    generator = torch.Generator().manual_seed(100 + place)
    numbers = np.random.RandomState(100 + place)
    drawn = torch.rand(1, generator=generator).item()
    return random.Random(100 + place).random(), numbers.rand(), drawn


@pytest.mark.parametrize('has_seeds', [True, False])
def test_seeds_that_a_program_has_set_stay(has_seeds: bool) -> None:
    found = pyg_sar.launch(_drawn, 2, has_seeds)
    assert found == [_expected(0), _expected(1 if has_seeds else 0)]
