"""``python -m pyg_sar.plan --in-turns``: what the disk takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch_geometric.nn import GraphSAGE

from pyg_sar.plan import main
from pyg_sar.planner import Job, Planner, by_hand
from pyg_sar.planner.prediction import OVERHEAD_BYTES
from pyg_sar.planner.turns import predict_turns, probe_disk

GRAPH = ['--nodes', '20000', '--edges', '200000', '--cut', '0.2@4', '--in', '32', '--out', '5']


def test_what_does_not_fit_is_written_once_and_read_once() -> None:
    job = Job(GraphSAGE(32, 64, 2, 5), in_channels=32)
    statistics = by_hand(20_000, 200_000, [(0.2, 4)])
    predicted = Planner(statistics, job, bandwidth=1e9, timed=False).predict(4)
    held = 4 * (predicted.ranks[0].peak_bytes - OVERHEAD_BYTES)
    found = predict_turns(predicted, held // 2, 1e9, 2e9)
    halo = 4 * predicted.ranks[0].bytes_per_epoch
    assert halo > 0
    assert found.written_bytes == found.disk_bytes == held - held // 2
    assert found.read_bytes == found.written_bytes + halo
    assert found.disk_seconds == found.written_bytes / 1e9 + found.read_bytes / 2e9
    assert found.turn_bytes == predicted.peak_bytes
    on_host = predict_turns(predicted, held // 2, 1e9, 2e9, host_memory=held // 4)
    assert on_host.host_bytes == held // 4
    assert on_host.written_bytes == held - held // 2 - held // 4
    assert found.read_bytes / 2 - 1 <= on_host.read_bytes <= found.read_bytes / 2 + 1
    all_fits = predict_turns(predicted, held, 1e9, 1e9)
    assert (all_fits.written_bytes, all_fits.read_bytes, all_fits.disk_seconds) == (0, 0, 0)


def test_the_probe_leaves_nothing(tmp_path: Path) -> None:
    assert min(probe_disk(tmp_path)) > 0
    assert [*tmp_path.iterdir()] == []


def test_the_command_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ['--in-turns', '--memory', '2MB', '--disk', str(tmp_path), '--epochs', '500']
    report = tmp_path / 'report.json'
    arguments = [*GRAPH, *options, '--ranks', '4', '--no-time', '--json', str(report)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert '4 parts: all ranks in turn' in text
    assert 'written in 500 epochs' in text
    assert json.loads(report.read_text())['in_turns'][0]['written_bytes'] > 0
    assert 'of the host' not in text
    assert main([*arguments, '--host-memory', '2MB']) == 0
    assert 'waits in memory of the host 0.002 GB' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (['--in-turns', '--memory', '2MB'], "'--in-turns' needs '--memory' and '--disk'"),
        (['--disk', '.'], "'--disk' is for '--in-turns' alone"),
        (['--host-memory', '2MB'], "'--host-memory' is for '--in-turns' alone"),
        (['--in-turns', '--memory', '2MB', '--disk', 'none'], 'none'),
    ],
)
def test_errors(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GRAPH, *options, '--ranks', '4', '--no-time']) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1
    assert words in error
