"""Batches made ahead by a thread: the same ones, however the program leaves its loops."""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from joined import Taken, assert_same, batches, take
from on_ranks import on_ranks
from ranks import run_as_threads, run_once, run_ranks

import pyg_sar
from pyg_sar.loader import ahead


def _loader(root: str, **options: Any) -> pyg_sar.NeighborLoader:
    data = pyg_sar.load_shard(root)
    given = {'seed': 3, 'shuffle': True, 'batch_size': 2, **options}
    return pyg_sar.NeighborLoader(data, [2, 2], **given)


def _threads() -> int:
    return sum(thread.name == 'pyg_sar batches' for thread in threading.enumerate())


def _end_of_threads() -> int:
    end = time.monotonic() + 120
    while _threads() and time.monotonic() < end:
        time.sleep(0.01)
    return _threads()


def _left_early(root: str, prefetch: int) -> tuple[Taken, Taken, int]:
    """Ranks leave the first epoch at different batches, and the second by an exception."""
    loader = _loader(root, prefetch=prefetch)
    assert len(loader) > 9
    first = []
    for batch in loader:
        first.append(take(batch))
        if len(first) == 1 + 8 * dist.get_rank():
            break
    try:
        for _ in loader:
            raise KeyError('the loop')
    except KeyError:
        pass
    third = [take(batch) for batch in loader]
    return first, third, _end_of_threads()


def test_ranks_leave_at_different_batches(folder: str) -> None:
    options = {'num_neighbors': [2, 2], 'seed': 3, 'shuffle': True, 'mask': None, 'batch_size': 2}
    want = run_as_threads(batches, 2, folder, 3, prefetch=0, **options)
    results = run_ranks(_left_early, 2, folder, 1)
    assert [len(first) for first, _, _ in results] == [1, 9]
    for (first, third, left), wanted in zip(results, want, strict=True):
        assert_same(third, wanted[2 * len(wanted) // 3 :])
        assert_same(first, wanted[: len(first)])
        assert left == 0


def _interleaved(root: str) -> tuple[Taken, Taken]:
    one, other = _loader(root), _loader(root, seed=4, shuffle=False)
    pairs = [(take(a), take(b)) for a, b in zip(one, other, strict=True)]
    for batch in one:  # another loop inside of a loop, with collectives of the program's own
        inner = sum(each.num_nodes for each in other)
        assert sum(pyg_sar.comm.agree(inner)) > batch.num_nodes
        break
    return [a for a, _ in pairs], [b for _, b in pairs]


def test_two_loaders_at_once(folder: str) -> None:
    options = {'num_neighbors': [2, 2], 'mask': None, 'prefetch': 0, 'batch_size': 2}
    one = run_as_threads(batches, 2, folder, seed=3, shuffle=True, **options)
    other = run_as_threads(batches, 2, folder, seed=4, **options)
    for got, *want in zip(run_ranks(_interleaved, 2, folder), one, other, strict=True):
        for taken, wanted in zip(got, want, strict=True):
            assert_same(taken, wanted)


@on_ranks(2, 4)
def test_a_forgotten_loader_ends_its_thread(data):
    loader = _loader(data.edge_index.handle.shard.root)
    iteration = iter(loader)
    next(iteration)
    assert _threads() == 1
    del loader, iteration
    gc.collect()
    assert _end_of_threads() == 0
    assert pyg_sar.comm.agree(1) == [1, 1]  # exchanges go on


@on_ranks(2, 4)
def test_only_the_newest_iteration_goes_on(data):
    loader = _loader(data.edge_index.handle.shard.root, prefetch=1)
    first = iter(loader)
    next(first)
    next(iter(loader))
    with pytest.raises(ValueError, match='newest iteration'):
        next(first)


def _dies(root: str, prefetch: int) -> tuple[str, str]:
    pyg_sar.comm.set_timeout(timedelta(seconds=20))
    loader = _loader(root, prefetch=prefetch)
    iteration = iter(loader)
    next(iteration)
    if dist.get_rank() == 1:
        os._exit(7)
    try:
        for _ in iteration:
            pass
    except pyg_sar.ExchangeError as error:
        first = f'{error.peer} {error}'
    try:
        pyg_sar.comm.agree(1)
    except pyg_sar.ExchangeError as error:
        return first, str(error)
    return first, 'no error'


@pytest.mark.parametrize('prefetch', [0, 1])
def test_a_rank_that_dies_ends_the_others(folder: str, prefetch: int) -> None:
    (first, later), _ = run_once(_dies, 2, folder, prefetch, may_die=(1,))
    assert first.startswith('1 ')
    assert 'NeighborLoader' in first
    assert 'ended before' in later


@on_ranks(2, 4, by='own processes')
def test_a_thread_that_fails_ends_all_ranks(data):
    pyg_sar.comm.set_timeout(timedelta(seconds=20))
    loader = _loader(data.edge_index.handle.shard.root, prefetch=1)
    if dist.get_rank() == 1:
        ptr = loader._sampler.graph.edges[None].ptr
        ptr.copy_(torch.arange(ptr.numel()) * 10**6)  # no such edges
        with pytest.raises((IndexError, RuntimeError)):
            list(loader)
    else:
        with pytest.raises(pyg_sar.ExchangeError, match='rank 1 failed with'):
            list(loader)


@on_ranks(2, 4, by='own processes')
def test_a_program_that_fails_ends_the_threads_of_all_ranks(data):
    pyg_sar.comm.set_timeout(timedelta(seconds=20))
    iteration = iter(_loader(data.edge_index.handle.shard.root, prefetch=1))
    next(iteration)
    if dist.get_rank() == 1:
        pyg_sar.comm.left_by(ArithmeticError('in a layer'))
        time.sleep(4)
    with pytest.raises(pyg_sar.ExchangeError, match='in a layer'):
        list(iteration)


def _ends(root: str, rank: int, store: str, how: str) -> None:
    dist.init_process_group('gloo', init_method=f'file://{store}', rank=rank, world_size=2)
    loader = _loader(root, prefetch=1)
    for number, _ in enumerate(loader):
        if number == 1:
            break
    if how == 'one waits':
        iteration = iter(loader)
        if rank == 0:  # a thread is in the middle of a round
            for _ in range(3):
                next(iteration)
        globals()['kept'] = iteration
    if how == 'destroyed':
        dist.destroy_process_group()
    if how == 'raises' and rank == 1:
        raise SystemExit(3)


@pytest.mark.slow
@pytest.mark.parametrize('how', ['left', 'one waits', 'destroyed', 'raises'])
def test_programs_end_with_a_loop_left(folder: str, tmp_path: Path, how: str) -> None:
    import subprocess
    import sys

    code = (
        'import sys; sys.path[:0] = {path!r}\n'
        'import test_neighbor_ahead\n'
        'test_neighbor_ahead._ends({root!r}, {rank}, {store!r}, {how!r})'
    )
    environment = {**os.environ, 'GLOO_SOCKET_IFNAME': 'lo', 'OMP_NUM_THREADS': '1'}
    programs = []
    for rank in range(2):
        text = code.format(
            path=sys.path, root=folder, rank=rank, store=str(tmp_path / 'store'), how=how
        )
        programs.append(
            subprocess.Popen([sys.executable, '-c', text], env=environment, stderr=subprocess.PIPE)
        )
    try:
        said = [program.communicate(timeout=150)[1].decode() for program in programs]
    finally:
        for program in programs:
            program.kill()
    codes = [program.returncode for program in programs]
    assert codes == [0, 3 if how == 'raises' else 0], said
    assert not any('terminate called' in text for text in said)


class _Slow:
    """What takes its time when it is dropped."""

    def __del__(self) -> None:
        time.sleep(0.5)


def _no_batches(
    begun: threading.Event, held: _Slow, is_wanted: Callable[[], bool]
) -> Iterator[Any]:
    begun.wait()
    return iter(())


def test_the_end_of_a_program_waits_for_what_a_thread_drops() -> None:
    """A thread that drops a tensor after the interpreter ended ends the process by an abort."""
    begun = threading.Event()

    def loop() -> None:
        source = ahead.Ahead(functools.partial(_no_batches, begun, _Slow()), 1, None, 'Loader')
        begun.set()
        with suppress(StopIteration):
            source.next()

    loop()
    time.sleep(0.1)  # the thread has begun to drop what it held
    ahead._leave_all()
    assert _threads() == 0
