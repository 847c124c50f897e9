"""``launch``: results, errors, and what cannot be started."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import attempt, cut, small_graph
from started import is_alive, output, run, start, wait_until
from three_steps import descend
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException
from torch_geometric.nn import GCNConv

import pyg_sar


def _train(root: Path, num_epochs: int = 2) -> list[float]:
    process = pyg_sar.init()
    data = pyg_sar.load_shard(root).to(process.device)
    torch.manual_seed(0)
    conv = pyg_sar.SARConv(GCNConv(6, 3).double())
    return descend(
        lambda: conv(data.x, data.edge_index).square().sum(1).mean(), conv, steps=num_epochs
    )


def test_the_same_losses_on_any_number_of_ranks(tmp_path: Path) -> None:
    root = cut(small_graph(), 6, tmp_path / 'parts')
    want = _train(root)
    for num_ranks in (1, 2, 3):
        for found in pyg_sar.launch(_train, num_ranks, root):
            assert found == pytest.approx(want, rel=1e-12)


def test_results_by_rank_and_what_is_there() -> None:
    """A forked process sees what the caller has, and cannot change it."""
    seen: list[int] = []

    def rank_of(offset: int) -> tuple[torch.Tensor, str]:
        process = pyg_sar.init()
        seen.append(process.rank)
        return torch.tensor([process.rank + offset]), str(seen)

    found = pyg_sar.launch(rank_of, 3, 10)
    assert [int(tensor) for tensor, _ in found] == [10, 11, 12]
    assert [text for _, text in found] == ['[0]', '[1]', '[2]']
    assert seen == []
    assert not torch.distributed.is_initialized()
    assert 'RANK' not in os.environ


def test_without_init() -> None:
    """The ranks are not joined, and load_shard says so."""
    told = pyg_sar.launch(lambda: attempt(pyg_sar.load_shard, 'parts'), 2)
    assert all('one of 2 processes started by RANK and WORLD_SIZE (call pyg_sar' in t for t in told)


def _fails(root: Path, rank: int) -> None:
    process = pyg_sar.init()
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(GCNConv(6, 3).double())
    conv(data.x, data.edge_index)
    if process.rank == rank:
        raise KeyError('only here')
    conv(data.x, data.edge_index)


@pytest.mark.parametrize('rank', [0, 2])
def test_the_rank_that_fails_by_itself_is_named(tmp_path: Path, rank: int) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts')
    with pytest.raises(ProcessRaisedException, match=r"(?s)in _fails.*KeyError: 'only here'") as e:
        pyg_sar.launch(_fails, 3, root, rank)
    assert e.value.error_index == rank


def _dies() -> None:
    if pyg_sar.init().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


@pytest.mark.parametrize(
    ('program', 'num_ranks', 'error', 'told'),
    [
        (_dies, 2, ProcessExitedException, 'process 1 terminated with signal SIGKILL'),
        (lambda: sys.exit(3), 2, ProcessExitedException, 'terminated with exit code 3'),
        (lambda: sys.exit(0), 2, RuntimeError, 'expected a result of rank 0'),
        (lambda: lambda: 0, 2, ProcessRaisedException, 'pickle'),
        (_dies, 0, ValueError, r"'num_ranks' must be at least 1 \(got 0"),
        *(
            (_dies, number, ValueError, rf"'num_ranks' must be a whole number \(got {number!r}\)")
            for number in ('2', 2.0, True, None)
        ),
    ],
)
def test_no_results(program: Any, num_ranks: Any, error: type[Exception], told: str) -> None:
    began = time.monotonic()
    with pytest.raises(error, match=told):
        pyg_sar.launch(program, num_ranks)
    assert time.monotonic() - began < 300  # half of the sleep


def _launches() -> str:
    return attempt(pyg_sar.launch, _dies, 2)


def test_by_a_rank() -> None:
    for rank, told in enumerate(run_as_threads(_launches, 2)):
        assert f'expected a process that is no rank (got rank {rank} of 2' in told


_IN_A_NOTEBOOK = """
import torch
import pyg_sar

torch.set_num_threads(2)
x = torch.randn(1000, 1000, requires_grad=True)
(x @ x).relu().sum().backward()  # threads are there now

def train(y):
    process = pyg_sar.init()
    torch.set_num_threads(2)
    loss = (x @ x @ y).relu().sum()
    loss.backward()
    return process.rank, float(loss)

want = float((x @ x @ torch.ones(1000, 1)).relu().sum())
print(pyg_sar.launch(train, 2, torch.ones(1000, 1)) == [(0, want), (1, want)])
"""


def test_functions_of_no_module_after_threads_were_used() -> None:
    """As a notebook has them: the module main is no file."""
    done = run(['python', '-'], given=_IN_A_NOTEBOOK, OMP_NUM_THREADS='2')
    assert (done.returncode, done.stdout) == (0, 'True\n'), done.stderr


def test_on_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules['pyg_sar.launch.launch']
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    assert module._start_method(_train) == 'spawn'
    monkeypatch.setattr(_train, '__module__', '__main__')
    monkeypatch.setattr(sys.modules['__main__'], '__file__', 'script.py', raising=False)
    assert module._start_method(_train) == 'spawn'  # of a script
    monkeypatch.delattr(sys.modules['__main__'], '__file__')
    with pytest.raises(ValueError, match='function of a module'):
        pyg_sar.launch(_train, 2)


_SPAWNED = """
import sys
import torch
import pyg_sar

def train(text):
    return pyg_sar.init().rank, text

if __name__ == '__main__':
    torch.cuda.is_available = lambda: True
    print(pyg_sar.launch(train, 2, 'x'))
"""


def test_a_script_whose_processes_start_anew(tmp_path: Path) -> None:
    (tmp_path / 'script.py').write_text(_SPAWNED)
    assert output(['python', tmp_path / 'script.py']) == "[(0, 'x'), (1, 'x')]\n"


_INTERRUPTED = """
import os, time
import pyg_sar

def wait(folder):
    pyg_sar.init()
    open(f'{folder}/{os.getpid()}', 'w').close()
    time.sleep(600)

import sys
pyg_sar.launch(wait, 2, sys.argv[1])
"""


def test_interrupted_as_in_a_notebook(tmp_path: Path) -> None:
    """The signal goes to the kernel alone; the ranks end with it."""
    process = start(['python', '-c', _INTERRUPTED, tmp_path], is_interrupted=True)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 'two ranks', 300)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=300)
    assert 'KeyboardInterrupt' in text
    assert not any(is_alive(int(path.name)) for path in tmp_path.iterdir())
