"""The launcher: results by rank, the first failure, time limits, and ranks used again."""

from __future__ import annotations

import os
import random
import signal
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.distributed as dist
from ranks import RankError, run_once, run_ranks
from started import is_alive, start, wait_until
from torch import Tensor
from torch_geometric.nn import Sequential


class _CustomWarning(UserWarning):
    pass


def _sum_of_ranks(offset: Tensor, *, scale: float) -> dict[str, Any]:
    value = scale * (offset + dist.get_rank())
    dist.all_reduce(value)
    return {'value': value, 'threads': torch.get_num_threads(), 'nested': [(value.long(), 'a')]}


def _draw() -> tuple[Tensor, float]:
    return torch.rand(3), np.random.random()  # noqa: NPY002 (what PyG draws from)


class _SlowError(ValueError):
    """Takes longer to report than the others to fail."""

    def __str__(self) -> str:
        dist.barrier()
        time.sleep(0.1)
        return 'the cause'


def _fail_first(rank: int) -> None:
    """`rank` fails, and all others when it has begun to report."""
    if dist.get_rank() == rank:
        raise _SlowError
    dist.barrier()
    raise KeyError('a consequence')


def _fail_one(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError('one alone')
    dist.barrier()


def _die(rank: int) -> str:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.barrier()
    except RuntimeError as error:
        return type(error).__name__
    return 'no error'


def _sleep_on_two() -> None:
    if dist.get_rank() == 2:
        _sleep_here()


def _sleep_here() -> None:
    time.sleep(600)


def _set_global() -> int:
    torch.set_default_dtype(torch.float64)
    return os.getpid()


def _warn(kind: type[Warning]) -> str:
    warnings.warn('told', kind, stacklevel=1)
    return 'went on'


def _sequential(inputs: str) -> int:
    """A ``Sequential``, whose code PyG names by a draw of ``random``: the same in every call."""
    state = random.getstate()
    random.seed(0)
    model = Sequential(inputs, [(torch.nn.Identity(), 'x -> x')])
    random.setstate(state)
    return int(model(*torch.eye(inputs.count(',') + 1))[0])


def _assert_ended(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), 'ranks live on', 60)


@pytest.mark.parametrize('world_size', [1, 3])
def test_results_by_rank(world_size: int) -> None:
    assert run_ranks(dist.get_rank, world_size) == list(range(world_size))
    results = run_ranks(_sum_of_ranks, world_size, torch.tensor([0.5, 1.0]), scale=2.0)
    offset = torch.tensor([0.5, 1.0], dtype=torch.float32)
    expected = 2 * (world_size * offset + world_size * (world_size - 1) / 2)
    assert len(results) == world_size
    for result in results:
        assert torch.equal(result['value'], expected)
        assert torch.equal(result['nested'][0][0], expected.long())
        assert result['nested'][0][1] == 'a'
        assert result['threads'] == 1


@pytest.mark.parametrize('inputs', ['x', 'x, y', 'x, y, z'])
def test_code_that_pyg_generates_is_of_a_test_and_of_a_call(inputs: str) -> None:
    assert run_ranks(_sequential, 1, inputs) == [1]
    assert _sequential(inputs) == 1


def test_ranks_are_used_again() -> None:
    first = run_ranks(os.getpid, 3)
    assert len(set(first)) == 3
    assert os.getpid() not in first
    assert run_ranks(os.getpid, 2) != first[:2]
    assert run_ranks(os.getpid, 3) == first


def test_every_call_starts_alike() -> None:
    first, second = run_ranks(_draw, 2), run_ranks(_draw, 2)
    for result in (*first, *second):
        assert torch.equal(result[0], first[0][0])
        assert result[1] == first[0][1]
    assert run_ranks(_set_global, 2) == run_ranks(os.getpid, 2)
    assert run_ranks(torch.get_default_dtype, 2) == [torch.float32] * 2


def test_the_first_failure_in_time_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, 'GRACE', 60)  # all report
    with pytest.raises(RankError, match='rank 1 of 3 failed') as caught:
        run_ranks(_fail_first, 3, 1)
    assert 'in _fail_first\n' in str(caught.value)
    assert '_SlowError: the cause' in str(caught.value)
    assert 'KeyError' not in str(caught.value)


def test_a_failure_kills_the_others_and_the_next_call_starts_new_ranks() -> None:
    before = run_ranks(os.getpid, 3)
    with pytest.raises(RankError, match=r'rank 1 of 3 failed \(ranks \[0, 2\] had not finished\)'):
        run_ranks(_fail_one, 3, 1)
    _assert_ended(before)
    after = run_ranks(os.getpid, 3)
    assert not set(before) & set(after)


def test_timeout_names_and_kills() -> None:
    pids = run_ranks(os.getpid, 3)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r'ranks \[2\] of 3 had not finished after 5 s') as e:
        run_ranks(_sleep_on_two, 3, timeout=5)
    assert time.monotonic() - start < 300  # half of the sleep
    assert 'in _sleep_here' in str(e.value)
    _assert_ended(pids)
    assert run_ranks(dist.get_rank, 3) == [0, 1, 2]


def test_warnings_are_errors_in_ranks_too() -> None:
    with pytest.raises(RankError, match='UserWarning: told'):
        run_ranks(_warn, 1, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', _CustomWarning)
        assert run_ranks(_warn, 1, _CustomWarning) == ['went on']
        with pytest.raises(RankError, match='UserWarning: told'):
            run_ranks(_warn, 1, UserWarning)


def test_run_once_with_a_rank_that_dies() -> None:
    results = run_once(_die, 3, 1, may_die=[1])
    assert results[1] is None
    assert 'Error' in results[0]
    assert 'Error' in results[2]
    with pytest.raises(RankError, match=r'rank 1 of 3 failed.*\n.*exit code -9'):
        run_once(_die, 3, 1)


@pytest.mark.bench
@pytest.mark.parametrize('ends_by', [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_the_process_that_started_them(tmp_path: Path, ends_by: int) -> None:
    """In the middle of a call; SIGINT reaches the ranks too, as from a terminal."""
    (tmp_path / 'calls.py').write_text(
        textwrap.dedent("""
            import os, time
            import torch.distributed as dist
            from ranks import run_ranks

            def stay(folder):
                with open(f'{folder}/pid-{dist.get_rank()}', 'w') as file:
                    file.write(str(os.getpid()))
                time.sleep(600)

            def test_stay():
                run_ranks(stay, 2, os.getcwd(), timeout=500)
        """)
    )
    command = ['python', '-m', 'pytest', '-p', 'no:cacheprovider', 'calls.py']
    with (tmp_path / 'said').open('w') as said:
        process = start(
            command, folder=tmp_path, said=said, is_interrupted=True, TMPDIR=str(tmp_path)
        )
    files = [tmp_path / f'pid-{rank}' for rank in range(2)]
    try:
        wait_until(lambda: all(f.exists() and f.read_text() for f in files), 'no ranks')
        pids = [int(file.read_text()) for file in files]
        assert all(map(is_alive, pids))
        if ends_by == signal.SIGINT:
            os.killpg(process.pid, ends_by)
        else:
            process.send_signal(ends_by)
        assert process.wait(120) != 0
        _assert_ended(pids)
        assert list(tmp_path.glob('ranks-*')) == []
    finally:
        process.kill()
        process.communicate()
