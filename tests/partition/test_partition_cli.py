"""``python -m pyg_sar.partition``."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_files import command, whole
from partition_files import load_part, meta_of
from ranks import heed_interrupts
from started import environment
from torch_geometric.data import Data

from pyg_sar.partition.__main__ import main
from pyg_sar.utils import command_line
from pyg_sar.utils.command_line import Progress


def _main(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_success(graph, tmp_path, check_partition, capfd):
    torch.save(graph, tmp_path / 'data.pt')
    arguments = '--num-parts', 3, '--objective', 'volume', '--seed', 2
    assert _main(tmp_path / 'data.pt', tmp_path / 'out', *arguments) == 0
    out, err = capfd.readouterr()
    check_partition(tmp_path / 'out', graph, 3)
    assert '50 nodes and 300 edges in 3 parts (metis)' in out
    assert 'edge cut' in out
    assert out.endswith(f'wrote {tmp_path / "out"}\n')
    phases = [line.partition(' (after ')[0] for line in err.splitlines()]
    found = [phase for phase in phases if phase != 'reading']
    assert found[:3] == ['METIS', 'order of nodes', 'part 1/3']
    meta = meta_of(tmp_path / 'out')
    assert meta['command'][:3] == ['python', '-m', 'pyg_sar.partition']
    assert meta['command'][-2:] == ['--seed', '2']
    assert meta['partition']['objective'] == 'volume'


@pytest.mark.slow
def test_ctrl_c_leaves_nothing(tmp_path):
    """Interrupted once the first files are there."""
    graph = Data(x=torch.zeros(60_000, 64), edge_index=torch.randint(60_000, (2, 200_000)))
    torch.save(graph, tmp_path / 'data.pt')
    words = ['data.pt', 'out', '--num-parts', '500', '--method', 'random']
    process = subprocess.Popen(
        [sys.executable, '-m', 'pyg_sar.partition', *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    end = time.monotonic() + 600
    while not list(tmp_path.glob('.out.*.tmp/new.tmp/part_3')):
        assert process.poll() is None, 'finished before it could be interrupted'
        assert time.monotonic() < end
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=600)
    assert (process.returncode, stdout) == (130, '')
    assert stderr.endswith('error: interrupted, nothing was written\n')
    assert 'Traceback' not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ['data.pt']


def test_options_arrive(graph, tmp_path, check_partition, capfd):
    del graph.train_mask
    source, out = tmp_path / 'data.pt', tmp_path / 'out'
    torch.save(graph, source)
    options = ('--balance', 'edges', '--split', '0.5/0.2/0.3', '--seed', 9)
    assert command(source, out, *options, num_parts=4) == 0
    expected = {'method': 'metis', 'seed': 9, 'balance': 'edges'}
    assert expected.items() <= meta_of(out)['partition'].items()
    masks = load_part(out, 0, 'node_feats.pt')['feats']
    assert {'train_mask', 'val_mask', 'test_mask'} <= set(masks)

    parts = np.arange(50) % 2
    np.save(tmp_path / 'parts.npy', parts)
    method = f'file:{tmp_path / "parts.npy"}'
    assert _main(source, tmp_path / 'b', '--num-parts', 2, '--method', method) == 0
    assert check_partition(tmp_path / 'b', graph, 2) == parts.tolist()
    assert f'({method})' in capfd.readouterr().out


def test_a_transform_beside_the_user(tmp_path, graph, monkeypatch):
    """The path of a command lacks the working directory."""
    torch.save(graph, tmp_path / 'data.pt')
    (tmp_path / 'mine.py').write_text(
        'from torch_geometric.transforms import BaseTransform\n'
        'class Twice(BaseTransform):\n'
        '    def forward(self, data):\n'
        '        data.x = 2 * data.x\n'
        '        return data\n'
    )
    monkeypatch.chdir(tmp_path)
    path = [entry for entry in sys.path if entry not in ('', str(tmp_path))]
    monkeypatch.setattr(sys, 'path', path)
    monkeypatch.setitem(sys.modules, 'mine', None)  # so that it is taken out in the end
    del sys.modules['mine']
    assert command('data.pt', Path('out'), '--transform', 'mine.Twice') == 0
    assert whole(Path('out'), 'x') == (2 * graph.x).tolist()


def test_dropped_arrays_are_noted(tmp_path, capfd):
    content = {'edge_index': torch.tensor([[0], [1]]), 'z': torch.eye(7).to_sparse()}
    torch.save(content, tmp_path / 'a.pt')
    assert command(tmp_path / 'a.pt', tmp_path / 'b') == 0
    out, note = capfd.readouterr()
    assert out == ''
    assert re.fullmatch(r'note: dropped .* z \(sparse torch\.float32 \[7, 7\]\).*\n', note)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _progress(monkeypatch, stderr, **options):
    monkeypatch.setattr(sys, 'stderr', stderr)
    with Progress(**options) as shown:
        shown.phase('METIS')
        is_done = shown.steps('part', 25)
        for _ in range(25):
            is_done()
    return stderr.getvalue()


def test_progress_in_a_log_file(monkeypatch):
    """Every phase, but not every step."""
    told = _progress(monkeypatch, io.StringIO())
    assert re.fullmatch(r'METIS \(after \d s\)\npart 1/25 \(after \d s\)\n', told)
    monkeypatch.setattr(command_line, '_SECONDS', 0.0)
    lines = _progress(monkeypatch, io.StringIO()).splitlines()
    assert [line.split()[1] for line in lines[1:]] == [f'{n}/25' for n in range(1, 26)]


def test_progress_is_one_line_of_a_terminal(monkeypatch):
    told = _progress(monkeypatch, _Terminal())
    assert 'part 25/25 (after' in told
    assert '\n' not in told
    assert told.endswith('\r\x1b[K'), 'nothing is left of it'


def test_what_ends_soon_is_not_said(monkeypatch):
    monkeypatch.setattr(sys, 'stderr', io.StringIO())
    with Progress() as shown:
        shown.phase('reading', delay=60.0)
    assert sys.stderr.getvalue() == ''
    with Progress() as shown:
        shown.phase('reading', delay=0.01)
        end = time.monotonic() + 60
        while not sys.stderr.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert sys.stderr.getvalue().startswith('reading (after ')


@pytest.mark.parametrize('terminal', [io.StringIO, _Terminal])
def test_no_progress(monkeypatch, terminal):
    assert _progress(monkeypatch, terminal(), quiet=True) == ''
    monkeypatch.setenv('RANK', '1')
    assert _progress(monkeypatch, terminal()) == ''
    monkeypatch.setenv('RANK', '0')
    assert _progress(monkeypatch, terminal()) != ''
