"""Profiles and the log of ranks that take turns tell of the rank what they tell of a process."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from launch.in_turns.programs import NUM_RANKS, Run, in_turns, make_model
from launch.test_log import stderr_of_a_log
from ranks import run_ranks

import pyg_sar
from pyg_sar.comm.ranks import rank as own_rank
from pyg_sar.comm.turns import Turns
from pyg_sar.utils import hook
from pyg_sar.utils.log import Counts, set_log


def _train(folder: str, kind: str, options: dict[str, Any], num_epochs: int = 2) -> Any:
    """Epochs after a first one: counts, the table's first words, and its seconds twice."""
    run = Run(folder, kind, **options)
    run.epoch()
    with pyg_sar.profile() as prof:
        for _ in range(num_epochs):
            run.epoch()
    spent = sum(c.waiting + c.computing for c in prof.counts.values())
    return _counted(prof.counts), prof.table().split(':')[0], (spent, prof.seconds)


def _counted(counts: dict[str, Counts]) -> dict[str, Counts]:
    """All but seconds."""
    return {name: replace(c, waiting=0, computing=0) for name, c in counts.items()}


def _in_turns(folder: Path, program: Callable[[], Any]) -> list[Any]:
    return in_turns(program, folder, NUM_RANKS).results


@pytest.mark.parametrize(
    ('kind', 'options'), [('sage', {}), ('gat', {}), ('sage', {'exchange_dtype': torch.bfloat16})]
)
def test_profiles_count_what_processes_count(folder, kind, options):
    found = _in_turns(folder, partial(_train, str(folder), kind, options))
    expected = run_ranks(_train, NUM_RANKS, str(folder), kind, options)
    for rank, ((ours, table, seconds), (theirs, *_)) in enumerate(
        zip(found, expected, strict=True)
    ):
        assert table == f'rank {rank} of {NUM_RANKS}'
        assert ours == theirs
        assert sum(c.bytes_received for name, c in ours.items() if 'forward' in name) > 0
        assert seconds[0] == pytest.approx(seconds[1])
    assert hook.watchers == ()


def test_whoever_waits_for_turns_is_told_to_wait(folder, monkeypatch):
    """So what is told as computing is a rank's own."""
    within: dict[int, int] = {}

    class Depth(hook.Watcher):
        watches_all = True

        def enter_operation(self, operation: str, peer: int | None) -> None:
            within[threading.get_ident()] = within.get(threading.get_ident(), 0) + 1

        def leave_operation(self) -> None:
            within[threading.get_ident()] -= 1

    give, given = Turns.give, []

    def watched(turns: Turns, rank: int) -> None:
        given.append(rank in turns._done or within[threading.get_ident()] > 0)
        give(turns, rank)

    monkeypatch.setattr(Turns, 'give', watched)
    depth = Depth()
    hook.add(depth)
    try:
        for kind in ('sage', 'gat'):
            _in_turns(folder, partial(_train, str(folder), kind, {}))
    finally:
        hook.remove(depth)
    assert len(given) > 100
    assert all(given)
    assert set(within.values()) == {0}


def _logged(folder: str, level: Any) -> str:
    """What two epochs have told on stderr of a process."""
    with stderr_of_a_log() as err:
        _epochs(folder, level)
    return err.getvalue()


def _epochs(folder: str, level: Any) -> None:
    set_log(level)
    run = Run(folder, 'sage', log=level)
    for _ in range(2):
        run.epoch()


def _by_rank(lines: list[str]) -> list[list[str]]:
    """Lines of every rank but those of operations, and without seconds."""
    found: list[list[str]] = [[] for _ in range(NUM_RANKS)]
    for line in lines:
        told = re.search(r'\[rank (\d)/3\] (.*)', line)
        assert told is not None
        words = re.sub(r'\d+\.\d{6} s', '', told[2])
        if not words.endswith(', waited '):
            found[int(told[1])].append(words)
    return found


@pytest.mark.parametrize('level', ['info', 'debug'])
def test_the_log_names_the_rank(folder: Path, level: str, caplog: pytest.LogCaptureFixture) -> None:
    try:
        _in_turns(folder, partial(_epochs, str(folder), level))
    finally:
        set_log('off')
    *lines, last = caplog.messages
    assert last.startswith('[rank 0/1] 3 ranks in turn: ')
    found = _by_rank(lines)
    expected = run_ranks(_logged, NUM_RANKS, str(folder), level)
    for rank in range(NUM_RANKS):
        theirs = _by_rank(expected[rank].splitlines())
        assert found[rank] == theirs[rank]
        assert sum('the first time' in line for line in found[rank]) > 3
    assert sum(', waited ' in line for line in lines) > (100 if level == 'debug' else 0)
    assert hook.watchers == ()


def test_an_error_leaves_no_watcher(folder: Path) -> None:
    def program() -> None:
        run = Run(folder, 'sage')
        with pyg_sar.profile():
            run.epoch()
            if own_rank() == 2:
                raise KeyError('x')

    with pytest.raises(KeyError):
        _in_turns(folder, program)
    assert hook.watchers == ()


def test_a_profile_outside_hears_none_of_the_ranks(folder: Path) -> None:
    data = pyg_sar.load_shard(folder / 'one')
    model = pyg_sar.DistributedDataParallel(make_model('sage').double())
    with pyg_sar.profile() as prof:
        model(data.x, data.edge_index)
        _in_turns(folder, partial(_train, str(folder), 'sage', {}))
    assert sum(c.rows_received for c in prof.counts.values()) == 0
    assert sum(name.startswith('layer') for name in prof.counts) == 3


def test_a_profiler_of_torch_records_one_rank(folder: Path) -> None:
    """Two of them in a process end it."""

    def program(ranks: tuple[int, ...]) -> int:
        run, found = Run(folder, 'sage'), 0
        cpu = [torch.profiler.ProfilerActivity.CPU]
        for _ in range(2):
            if own_rank() not in ranks:
                run.epoch()
                continue
            with torch.profiler.profile(activities=cpu) as profiler, pyg_sar.profile():
                run.epoch()
            found = sum(e.name.startswith('pyg_sar::layer') for e in profiler.events())
        return found

    assert [n > 0 for n in _in_turns(folder, partial(program, (1,)))] == [False, True, False]
    with pytest.raises(RuntimeError, match=r'rank 2 while that of rank 1 runs'):
        _in_turns(folder, partial(program, (1, 2)))
    assert _in_turns(folder, partial(program, (0,)))[0] > 0
    assert hook.watchers == ()
