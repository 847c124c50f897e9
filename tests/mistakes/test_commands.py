"""Command lines that are wrong end with code 2 and one line that says so; nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_graphs import cut, small_graph
from test_mistakes import FIRST

from pyg_sar.__main__ import main

TABLE = """
cut => invalid choice: 'cut'
partition --no-such => error:
run --no-such => error:
info --no-such => error:
partition data.pt out => the following arguments are required: --num-parts
partition data.pt out --num-parts two => argument --num-parts: invalid int value: 'two'
partition data.pt full TWO => which is not empty; pass force=True or --force
partition nofile.pt out TWO => (got 'nofile.pt', no such file)
partition data.pt out TWO --balance x => argument --balance: invalid
partition data.pt out TWO --wrong => unrecognized arguments: --wrong
partition FAKE out TWO --transform GcnNorm => do you mean GCNNorm?
run none.py => error: no such file: none.py$
run --nproc-per-node many train.py => error: Unsupported nproc_per_node value: many$
run --nproc-per-node 0 train.py => error: --nproc-per-node must be at least 1 (got 0)$
run --nproc-per-node -2 train.py => error: --nproc-per-node must be at least 1 (got -2)$
run --nnodes 0 train.py => error: --nnodes must be at least 1, and MIN at most MAX (got 0)$
run --nnodes 2:1 train.py => error: --nnodes must be at least 1, and MIN at most MAX (got 2:1)$
run --nnodes a train.py => error: --nnodes must be a number, or MIN:MAX (got a)$
run --nnodes 1:2:3 train.py => error: --nnodes must be a number, or MIN:MAX (got 1:2:3)$
run --nnodes 2 --node-rank 2 train.py => error: --node-rank must lie in [0, 2) (got 2)$
run --nnodes 2 --standalone train.py => error: --standalone is for --nnodes 1 (got 2)$
run --max-restarts -1 train.py => error: --max-restarts must be at least 0 (got -1)$
run --monitor-interval 0 train.py => error: --monitor-interval must be above 0 (got 0.0)$
run --nproc-per-node 2 none.py => error: no such file: none.py$
run --memory 1GB train.py => error: --memory is for ranks in turn: add --in-turns$
run --in-turns --memory 64 train.py => 64 bytes? say 64GB
run --in-turns train.py --memory=1MB => needs --memory SIZE before
TURNS none.py => no such file: none.py
TURNS --parts=none train.py => a partition folder at 'none' (got no folder)
TURNS --spill=none train.py => evicted memory): 'none'
TURNS --nproc-per-node=3 train.py => no options of torchrun (got --nproc-per-node)
info . => or only in part): python -m pyg_sar.partition makes one
info . => got one without META.json: it was not written by pyg_sar.partition
info parts/part_0 => error: expected a complete partition folder
info parts --plot x => expected a file that ends in .png
info --verify => error: --verify needs a folder PARTS$
"""
"""Words, and what is told; $ is the end of the line."""

SHORT = {
    'FAKE': 'torch_geometric.datasets.FakeDataset(num_graphs=1)',
    'TWO': '--num-parts 2',
    'TURNS': 'run --in-turns --memory=1MB --spill=. --parts=parts',
}
WRONG = [line.split(' => ') for line in TABLE.split('\n')[1:-1]]
if not torch.cuda.is_available():
    WRONG.append(['run --in-turns --memory=1MB train.py', "error: 'spill' must be"])


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('commands')
    cut(small_graph(), 3, root / 'parts')
    torch.save(small_graph(), root / 'data.pt')
    for name in ('full/file', 'train.py'):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize(('line', 'told'), WRONG)
def test_a_wrong_command_line(folder, line, told, monkeypatch, capsys):
    words = ' '.join(SHORT.get(word, word) for word in line.split()).split()
    monkeypatch.chdir(folder)
    try:
        code: object = main(words)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, '')
    assert err.startswith('error: ')
    assert err.count('\n') == 1
    assert told.replace('$', '\n') in err[:FIRST]
    assert {path.name for path in folder.iterdir()} == {'parts', 'data.pt', 'full', 'train.py'}
