"""Losses are those that were kept: their bits on the same versions, and 1e-6 elsewhere."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from alike import cut_of
from golden_runs import FILE, RUNS, Run, losses, trained, versions
from ranks import run_ranks
from small_graphs import cut, small_graph
from started import output
from torch_geometric.nn import GATConv

KEPT = json.loads(FILE.read_text())


@pytest.mark.parametrize('world_size', [1, 3])
@pytest.mark.parametrize('name', RUNS)
def test_losses_are_those_that_were_kept(name: str, world_size: int) -> None:
    found, *others = run_ranks(losses, world_size, cut_of(small_graph, 3), name)
    kept = KEPT[name][str(world_size)]
    if not RUNS[name].samples:
        assert all(other == found for other in others)
    if KEPT['versions'] == versions():
        assert found == kept, "a change of bits is a line of CHANGELOG; 'make golden' writes them"
    assert found == pytest.approx(kept, rel=1e-6)


def test_one_process_and_three_agree() -> None:
    for name, run in RUNS.items():
        if not run.samples and 'exchange_dtype' not in run.options:
            assert KEPT[name]['1'] == pytest.approx(KEPT[name]['3'], rel=1e-10), name


ANEW = ('SAGE', 'SAGE, rows kept', 'SAGE, median', 'GEN', 'GAT, one_shot')
DROPOUT = Run(lambda a, b: GATConv(a, b, dropout=0.3))


def on_threads(root: str, threads: int) -> list[list[float]]:
    """Losses of some runs on a larger graph, whose loops threads share."""
    torch.set_num_threads(threads)
    return [trained(root, run) for run in (DROPOUT, *(RUNS[name] for name in ANEW))]


@pytest.mark.bench
@pytest.mark.parametrize('threads', [1, 2])
def test_processes_started_anew_have_the_same_bits(tmp_path: Path, threads: int) -> None:
    root = str(cut(small_graph(2000, 16000), 3, tmp_path / 'parts'))
    program = (
        'import json, sys; from ranks import run_once; from test_golden import on_threads; '
        'print(json.dumps(run_once(on_threads, 3, sys.argv[1], int(sys.argv[2]))))'
    )
    command = ['python', '-c', program, root, threads]
    variables = {'PYTHONPATH': os.pathsep.join(sys.path), 'OMP_NUM_THREADS': str(threads)}
    told = [output(command, PYTHONHASHSEED=seed, **variables) for seed in ('1', '2')]
    assert told[0] == told[1]
    first, *others = json.loads(told[0])
    assert all(other == first for other in others)
    assert all(len(set(each)) == len(each) for each in first)  # they train
