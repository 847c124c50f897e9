"""Ports of PyG's examples: few lines differ, and they train as the plain programs do.

A port is the plain program with its changed lines marked: ``# sar`` ends a line that is new, and
``# plain:`` begins one that is gone. So both programs are read from one file.
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from few import few
from pages import ROOT, Reader
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.threads import run_threads
from pyg_sar.partition import __main__ as partition

FOLDER = ROOT / 'examples' / 'pyg'
PORTS = sorted(path.stem for path in FOLDER.glob('*.py') if path.stem != 'graphs')

SHORT = {'EPOCHS': 3, 'DROPOUT': 0.0, 'LAYERS': 3, 'BATCH_SIZE': 1000, 'NUM_NEIGHBORS': [-1, -1]}
"""Constants in tests; no dropout, as each rank draws its own masks, and one batch of all seeds."""

ONE_PROCESS = {
    # draws of pyg_sar's own
    ' negative_sampling(': ' pyg_sar.negative_sampling(',
    'import negative_sampling': 'import is_undirected',
    'structured_negative_sampling(each.flip(0))': (
        'pyg_sar.negative_sampling(each, data.num_nodes, paired=True)[[1, 0, 2]]'
    ),
    # what torch's DistributedDataParallel is on one process
    "torch.distributed.init_process_group('gloo')": '',
    'torch.distributed.get_rank(), torch.distributed.get_world_size()': '0, 1',
    'from torch.nn.parallel import DistributedDataParallel': '',
    'from torch_geometric.loader import NeighborLoader': '',  # needs pyg-lib
}
"""What is replaced in plain programs."""


class _AllNeighbors:
    """PyG's NeighborLoader where one batch has all seeds and all nodes."""

    def __init__(self, data: Data, num_neighbors: list[int], seeds: Tensor, **_: Any) -> None:
        assert set(num_neighbors) == {-1}
        is_seed = torch.zeros(len(data.x), dtype=torch.bool).index_fill(0, seeds, True)
        nodes = torch.cat([seeds, (~is_seed).nonzero().view(-1)])
        self.batch = Data(x=data.x[nodes], y=data.y[nodes], batch_size=len(seeds))
        self.batch.edge_index = nodes.argsort()[data.edge_index]

    def __iter__(self) -> Iterator[Data]:
        yield self.batch


def _plain(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.endswith('  # sar')]
    return '\n'.join(re.sub(r'^( *)# plain: ', r'\1', line) for line in lines)


def _ported(text: str) -> str:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith('# plain: ')]
    return '\n'.join(line.removesuffix('  # sar') for line in lines)


def _short(text: str) -> str:
    found = re.search(r'^([A-Z_]+(?:, [A-Z_]+)*) = (.*)$', text, re.MULTILINE)
    assert found is not None
    values = zip(found[1].split(', '), eval(f'({found[2]},)'), strict=True)
    new = ', '.join(repr(SHORT.get(name, value)) for name, value in values)
    return text.replace(found[0], f'{found[1]} = {new}')


def _run(text: str, **given: Any) -> dict[str, Any]:
    """The last loss and scores, and all weights that a program ends with."""
    names: dict[str, Any] = {'__name__': '__main__', 'print': lambda *_: None, **given}
    exec(compile(text, 'port', 'exec'), names)
    weights = [p.detach() for p in names['model'].parameters()]
    return {name: torch.tensor(names[name]) for name in ('loss', 'accs')} | {'weights': weights}


def _commands(text: str) -> None:
    """Those of a program's docstring, but the last one, which starts it."""
    *commands, last = re.findall(r'^    (\S.*)$', text.split('"""')[1], re.MULTILINE)
    assert last.startswith('torchrun --local-ranks-filter 0 --nproc-per-node 3 examples')
    for command in commands:
        _, *words = shlex.split(command)
        if words[0] == '-m':
            assert partition.main([*words[2:], '--quiet']) == 0
        else:
            import graphs as drawn  # type: ignore[import-not-found]

            drawn.main(*words[1:])


@pytest.fixture
def _float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, 'graphs', raising=False)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
    sys.modules.pop('graphs', None)


def test_all_are_here() -> None:
    names = 'gcn gat gcn2_cora pna rgcn hetero_conv hgt link_pred infomax correct_and_smooth unimp'
    assert {*names.split(), 'lightgcn', 'signed_gcn', 'distributed_sampling'} == set(PORTS)


@pytest.mark.parametrize('name', PORTS)
def test_few_lines_differ(name: str) -> None:
    text = (FOLDER / f'{name}.py').read_text()
    lines = [*difflib.ndiff(_plain(text).split('\n'), _ported(text).split('\n'))]
    new, gone = ([line for line in lines if line[0] == sign] for sign in '+-')
    assert len(new) <= 5
    assert len(gone) <= 8
    assert (len(new), len(gone)) == (text.count('# sar'), text.count('# plain:'))
    assert 'sar' not in _plain(text).split('"""')[2]
    compile(_plain(text), name, 'exec')
    row = rf'^\| \[{name}\.py\]\({name}\.py\) .*\| {len(new)} \|$'
    assert re.search(row, (FOLDER / 'README.md').read_text(), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.usefixtures('_float64')
@pytest.mark.parametrize('name', few(PORTS, every=5))
def test_trains_as_the_plain_program(name: str) -> None:
    text = _short((FOLDER / f'{name}.py').read_text())
    _commands(text)
    plain = _plain(text)
    for drawn, same in ONE_PROCESS.items():
        plain = plain.replace(drawn, same)
    want = _run(
        plain,
        pyg_sar=pyg_sar,
        NeighborLoader=_AllNeighbors,
        DistributedDataParallel=lambda model: model,
    )
    for world_size in (1, 3):
        for got in run_threads(_run, world_size, text):
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.bench
def test_the_page_can_be_followed(tmp_path: Path) -> None:
    (tmp_path / 'examples').symlink_to(ROOT / 'examples')
    Reader(tmp_path).read(FOLDER / 'README.md')
