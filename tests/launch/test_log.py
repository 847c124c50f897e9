"""PYG_SAR_LOG and ``log=``: quiet by default, else a line for all that a rank does."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any

import pytest
import torch
import torch.distributed as dist
from alike import assert_bits
from on_ranks import on_ranks, parts_of
from ranks import run_ranks
from started import run
from torch_geometric.nn import GraphSAGE, SAGEConv

import pyg_sar
from pyg_sar.utils import hook
from pyg_sar.utils.log import bytes_text, set_log, set_log_by_environment


@pytest.fixture
def root() -> str:
    return str(parts_of(3))


@contextmanager
def stderr_of_a_log() -> Iterator[io.StringIO]:
    """What is told on stderr; afterwards the log is off."""
    err = io.StringIO()
    with redirect_stderr(err):
        try:
            yield err
        finally:
            set_log('off')
    assert hook.watchers == ()


def _train(root: str, level: Any) -> tuple[str, list[torch.Tensor], list[Any]]:
    """What is told on stderr, output and gradients of two epochs, and the steps of the shard."""
    with stderr_of_a_log() as err:
        set_log(level)
        data = pyg_sar.load_shard(root)
        torch.manual_seed(0)
        net = GraphSAGE(6, 6, 2, norm='batch_norm').double()
        model = pyg_sar.DistributedDataParallel(net, log=level, partial_sums=False)
        found = []
        for _ in range(2):
            model.zero_grad()
            out = model(data.x, data.edge_index)
            out.square().sum().backward()
            found += [pyg_sar.local(out.detach()), *(p.grad.clone() for p in model.parameters())]
    assert logging.getLogger('pyg_sar').level == logging.NOTSET
    shard = data.edge_index.handle.shard
    steps = [(step.part, step.recv_rows, step.send_index.numel()) for step in shard.steps]
    return err.getvalue(), found, [steps, shard.num_edges, shard.num_own, shard.num_halo]


def test_levels(root):
    """The same bits at every level; lines whose numbers are the shard's."""
    quiet, info, debug = (run_ranks(_train, 3, root, level) for level in (None, 'info', 'debug'))
    for rank in range(3):
        assert quiet[rank][0] == ''
        for told in (info, debug):
            assert_bits(told[rank][1], quiet[rank][1])
        steps, num_edges, num_own, num_halo = info[rank][2]
        lines = info[rank][0].splitlines()
        assert all(re.fullmatch(rf'\d\d:\d\d:\d\d \[rank {rank}/3\] .*', line) for line in lines)
        loaded, wrapped, *first = (line.split('] ', 1)[1] for line in lines)
        assert f'{num_own} own nodes, {num_edges} edges, {num_halo} halo rows' in loaded
        assert "2 layers: layer 'convs.0' (SAGEConv), mode 'sequential'" in wrapped
        sent = sum(n for _, _, n in steps)
        rows = f'received {num_halo} rows ({bytes_text(num_halo * 48)}), sent {sent} rows'
        back = f'received {sent} rows ({bytes_text(sent * 48)}), sent {num_halo} rows'
        expected = []
        for i in (0, 1):
            layer = f"layer 'convs.{i}' (SAGEConv)"
            expected += [f'{layer}, forward: ', f'{layer}, forward, the first time: {rows}']
        expected.append(f"layer 'convs.1' (SAGEConv), backward, the first time: {back}")
        for line, start in zip(first, expected, strict=True):
            assert line.startswith(start)

        lines = debug[rank][0].splitlines()
        for words, come, gone in (('forward, rows', 1, 2), ('backward, gradients of rows', 2, 1)):
            blocks = [line for line in lines if f"'convs.1' (SAGEConv), {words} of part" in line]
            for line, step in zip(blocks, steps * 2, strict=True):  # two epochs
                assert f'part {step[0]}: received {step[come]} rows (' in line
                assert f'sent {step[gone]} rows (' in line
                assert re.search(r'waited \d+\.\d{6} s, computed \d+\.\d{6} s$', line)
        assert sum(f"'convs.1' (SAGEConv), forward, all: {rows}" in line for line in lines) == 1
        assert any('outside of layers: a sum over all ranks, waited ' in line for line in lines)


def test_quiet_by_default(root, caplog, capfd):
    """Even where the program shows warnings."""
    run_ranks(_train, 1, root, None)
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 6).double())
    model(data.x, data.edge_index).sum().backward()
    assert hook.watchers == ()
    assert caplog.records == []
    assert capfd.readouterr() == ('', '')


def test_handlers_of_the_program(root, caplog, capfd):
    """They get the lines instead of stderr."""
    with stderr_of_a_log() as err:
        data = pyg_sar.load_shard(root)
        model = pyg_sar.DistributedDataParallel(SAGEConv(6, 6).double(), log='info')
        model(data.x, data.edge_index)
    assert (err.getvalue(), *capfd.readouterr()) == ('', '', '')
    # Which module was imported first decides about huge pages.
    records = [record for record in caplog.records if 'huge pages' not in record.getMessage()]
    assert [record.levelname for record in records] == ['INFO'] * 3
    assert all(record.name.startswith('pyg_sar.') for record in records)
    assert all(text.startswith('[rank 0/1] ') for text in caplog.messages)


def test_environment(monkeypatch):
    with stderr_of_a_log():
        for value, is_on in (('DEBUG', True), ('', True), ('off', False), ('info', True)):
            monkeypatch.setenv('PYG_SAR_LOG', value)
            set_log_by_environment()
            assert bool(hook.watchers) == is_on
        monkeypatch.setenv('PYG_SAR_LOG', 'loud')
        with pytest.raises(ValueError, match=r"PYG_SAR_LOG .*'loud'"):
            set_log_by_environment()


def test_wrong_level():
    with pytest.raises(ValueError, match=r"'log' .*'loud'"):
        pyg_sar.DistributedDataParallel(SAGEConv(2, 2), log='loud')


@on_ranks(2, 0)
def test_a_wrong_level_on_one_rank():
    with pytest.raises(ValueError, match="'log'"):
        pyg_sar.DistributedDataParallel(SAGEConv(2, 2), log='loud' if dist.get_rank() else None)


def _only_rank_1_tells(root: str) -> str:
    return _train(root, 'debug' if dist.get_rank() == 1 else None)[0]


def test_one_rank_tells(root):
    texts = run_ranks(_only_rank_1_tells, 3, root)
    assert [bool(text) for text in texts] == [False, True, False]


def _fails(root: str) -> str:
    with stderr_of_a_log() as err:
        data = pyg_sar.load_shard(root)
        model = pyg_sar.DistributedDataParallel(SAGEConv(6, 6).double(), log='debug')
        for x in (data.x[:-1], data.x):
            with suppress(ValueError):
                model(x, data.edge_index)
    return err.getvalue()


def test_after_an_exception(root):
    """A layer that failed has ended."""
    for text in run_ranks(_fails, 1, root):
        passes = [line for line in text.splitlines() if ', forward, ' in line]
        assert ['the first time' in line for line in passes] == [True, False]


def test_bytes_text():
    sizes = {0: '0 B', 1023: '1023 B', 1024: '1.0 KiB', 3 << 19: '1.5 MiB', 5 << 40: '5.0 TiB'}
    assert {size: bytes_text(size) for size in sizes} == sizes


@pytest.mark.bench
def test_environment_of_a_program(root):
    code = f'import pyg_sar; pyg_sar.load_shard({root!r})'
    for value in ('', 'info'):
        done = run(['python', '-c', code], PYG_SAR_LOG=value)
        assert done.returncode == 0, done.stderr
        told = [line for line in done.stderr.splitlines() if '[rank' in line]
        assert [('loaded parts 0 to 2 of 3' in line) for line in told] == [True] * bool(value)
