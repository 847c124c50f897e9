"""Runs that are killed, and go on from their last checkpoint."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from checkpoint_runs import losses, resumed
from ranks import RankError, run_once, run_ranks
from small_graphs import cut, small_graph
from started import ROOT, output


def _life(parts: str, root: str, num_epochs: int, life: str) -> list[float]:
    """From the last checkpoint on, in a process that can be killed."""
    Path(f'{life}.pid.{torch.distributed.get_rank()}').write_text(str(os.getpid()))
    return resumed(parts, root, num_epochs, dropout=0.2, beats=f'{life}.beats')


def _kill(
    life: Path, num_beats: int, fraction: float, done: threading.Event, killed: list[Path]
) -> None:
    """Kills all ranks at `fraction` of the epoch, with its checkpoint, after `num_beats` beats."""
    beats = life.with_suffix('.beats')
    times = [time.monotonic()]
    while len(times) <= num_beats and not done.wait(0.0005):
        if beats.exists() and beats.stat().st_size >= len(times):
            times.append(time.monotonic())
    # The first stretch is starting up; the last one tells how long an epoch takes.
    epoch = times[-1] - times[-2] if num_beats > 1 else 0.1
    if not done.wait(fraction * epoch):
        killed.append(life)
        for path in life.parent.glob(f'{life.name}.pid.*'):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)


def _survives(tmp_path: Path, world_size: int, num_kills: int) -> int:
    """Kills a run `num_kills` times and compares; returns how many kills hit a save."""
    parts, root = str(cut(small_graph(), world_size, tmp_path / 'parts')), tmp_path / 'run'
    num_epochs = 3 * num_kills + 2  # A life sees at most three.
    want = run_ranks(losses, world_size, parts, num_epochs, dropout=0.2, timeout=300)[0]
    draw = random.Random(3)
    half_written, killed, everyone = 0, [], range(world_size)
    for number in range(num_kills):
        life, done = tmp_path / f'life {number}', threading.Event()
        args = (life, draw.randint(1, 3), draw.random(), done, killed)
        killer = threading.Thread(target=_kill, args=args)
        killer.start()
        args = parts, str(root), num_epochs, str(life)
        try:
            found = run_once(_life, world_size, *args, may_die=everyone)
        except RankError:  # One that outlived another by a moment.
            found = [None]
        finally:
            done.set()
            killer.join()
        assert len(killed) == number + 1, f'life {number} ended by itself'
        assert None in found
        half_written += any(root.glob('.epoch-*.tmp'))
    args = parts, str(root), num_epochs, str(tmp_path / 'last')
    found = run_once(_life, world_size, *args, timeout=300)
    assert found == [want] * world_size
    assert not any(root.glob('.*.tmp'))
    return half_written


@pytest.mark.slow
def test_a_run_killed_three_times_is_the_same(tmp_path):
    _survives(tmp_path, 2, 3)


@pytest.mark.bench
def test_a_run_killed_fifty_times_is_the_same(tmp_path):
    half_written = _survives(tmp_path, 3, 50)
    print(f'{half_written} of 50 kills hit a checkpoint that was being written')
    assert half_written > 0


_KILLED_ONCE = """
import os, runpy, signal, sys
import torch.distributed as dist
import pyg_sar

save = pyg_sar.save_checkpoint
mark = __file__ + '.died'

def save_and_die(root, *args, epoch, **kwargs):
    save(root, *args, epoch=epoch, **kwargs)
    if epoch == 2 and dist.get_rank() == 1 and not os.path.exists(mark):
        open(mark, 'w').close()
        os.kill(os.getpid(), signal.SIGKILL)

pyg_sar.save_checkpoint = save_and_die
sys.argv[1:], example = sys.argv[2:], sys.argv[1]
runpy.run_path(example, run_name='__main__')
"""
"""The example as it is, but one worker dies once, after its second epoch."""


@pytest.mark.bench
def test_torchrun_restarts_the_example_from_its_last_checkpoint(tmp_path):
    graph = small_graph()
    graph.x = graph.x.float()
    parts = str(cut(graph, 2, tmp_path / 'parts'))
    example = ROOT / 'examples' / 'train_full_batch.py'
    options = [parts, '--hidden', 8, '--epochs', 5]
    torchrun = ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', 2]
    want = _lines(*torchrun, example, *options)
    assert [int(line.split()[1]) for line in want] == [1, 2, 3, 4, 5]

    program = tmp_path / 'killed_once.py'
    program.write_text(_KILLED_ONCE)
    # All attempts share a store otherwise, where gloo (torch 2.13) finds addresses of dead workers.
    saving = '--checkpoint', tmp_path / 'run'
    again = [*torchrun, '--max-restarts', 1, program, example, *options, *saving]
    found = _lines(*again, TORCH_DISABLE_SHARE_RDZV_TCP_STORE='1')
    assert (tmp_path / 'killed_once.py.died').exists()
    assert found == want
    # One process goes on where two have stopped.
    (line,) = _lines(example, *options[:-1], 6, *saving)
    assert line.startswith('epoch   6')


def _lines(*command: object, **variables: str) -> list[str]:
    return re.findall(r'^epoch .*$', output(['python', *command], **variables), re.MULTILINE)
