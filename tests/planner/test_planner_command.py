"""The command line of the planner: python -m pyg_sar.plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from planner_models import cut_small_graph
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar import plan
from pyg_sar.monitor import parse_bytes
from pyg_sar.planner import attention, by_hand, predict_attention, read_statistics
from pyg_sar.planner.report import format_bytes

SMALL = ['--hidden', '16', '--layers', '2', '--no-time']


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_small_graph(tmp_path_factory.mktemp('planner') / 'parts')


@pytest.mark.parametrize(
    'make',
    [
        lambda: by_hand(0, 10),
        lambda: by_hand(10, 10, [(0.1, 1)]),
        lambda: by_hand(10, 10, [(1.1, 2)]),
        lambda: by_hand(10, 10, [(0.1, 2)], [(1.0, 4)]),
        lambda: by_hand(10, 10, [(0.1, 2)], imbalance=0.5),
        lambda: by_hand(10, 10).at(2),
        lambda: parse_bytes('64 XB'),
        lambda: parse_bytes('0GB'),
    ],
)
def test_statistics_and_units_are_checked(make: Any) -> None:
    with pytest.raises(ValueError, match=r'expected|must'):
        make()


def test_units() -> None:
    assert parse_bytes('64GB') == 64 * 10**9
    assert parse_bytes('1.5 GiB') == 3 << 29
    assert parse_bytes('100') == 100
    assert format_bytes(1.85e9) == '1,850 MB'
    assert format_bytes(24.06e9) == '24.1 GB'


def test_command_line_of_a_folder(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'plan.json'
    argv = [str(parts), *SMALL, '--memory', '1TB', '--ranks', '1,2,4,8', '--json', str(out)]
    assert plan.main(argv) == 0
    text = capsys.readouterr().out
    for words in ('600 nodes, 4,000 directed edges', 'each of them', '1,000 GB each: 1'):
        assert words in text
    report = json.loads(out.read_text())
    assert report['least_ranks'] == 1
    found = report['predictions']
    assert [p['num_ranks'] for p in found] == [1, 2, 4, 8]
    assert [p['cut'] for p in found] == ['this folder'] * 3 + ['extrapolated']
    assert [len(p['ranks']) for p in found] == [1, 2, 4, 1]
    ranks = found[2]['ranks']
    assert found[2]['peak_bytes_max'] == max(rank['peak_bytes'] for rank in ranks)
    assert sum(rank['num_nodes'] for rank in ranks) == 600
    assert found[2]['seconds_per_epoch'] is None
    rows = [line.split() for line in text.splitlines() if line.endswith(('folder', 'extrapolated'))]
    assert [row[0] for row in rows] == ['1', '2', '4', '8']


@pytest.mark.parametrize('options', [['--model', 'gat', '--mode', 'one_shot', '--dropout', '0.5'],
                                     ['--model', 'gcn', '--norm', 'none', '--optimizer', 'sgd'],
                                     ['--model', 'gin', '--dtype', 'float64']])  # fmt: skip
def test_command_line_takes_models(
    parts: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan.main([str(parts), *SMALL, *options, '--ranks', '4']) == 0
    assert options[1] in capsys.readouterr().out


def test_command_line_of_batches(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'plan.json'
    sampled = ['--sampled', '3,-1', '--batch-size', '20', '--json', str(out)]
    assert plan.main([str(parts), *SMALL[:-1], *sampled, '--ranks', '1,4']) == 0
    assert 'batches of 20 seeds of each part, [3, -1]' in capsys.readouterr().out
    one, four = json.loads(out.read_text())['batches']
    assert (one['remote_rows'], one['remote_bytes']) == (0, 0)
    assert one['num_batches'] == four['num_batches'] == -(-150 // 20)
    assert 0 < four['remote_rows'] < four['num_nodes'] < one['num_nodes']


def test_command_line_of_batches_of_links(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'plan.json'
    found = []
    for links in ([], ['--links', '0'], ['--links']):
        sampled = ['--sampled', '3', '--batch-size', '20', *links, '--json', str(out)]
        assert plan.main([str(parts), *SMALL[:-1], *sampled, '--ranks', '4']) == 0
        found.append(json.loads(out.read_text())['batches'][0])
    assert 'batches of 20 links with 1 negatives of each part, [3]' in capsys.readouterr().out
    assert found[0]['num_nodes'] < found[1]['num_nodes'] < found[2]['num_nodes']
    assert found[0]['num_batches'] < found[1]['num_batches'] == found[2]['num_batches']


def test_attention_to_all_nodes(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys and values of 150 rows travel in 3 + 3 passes, and their gradients in 4."""
    out = tmp_path / 'plan.json'
    argv = [str(parts), *SMALL, '--attention', '8', '--ranks', '1,4', '--json', str(out)]
    assert plan.main(argv) == 0
    assert 'softmax attention to all nodes in every layer, 8 wide in 4 heads' in (
        capsys.readouterr().out
    )
    one, four = json.loads(out.read_text())['attention']
    assert one == {'num_ranks': 1, 'seconds': None, 'bytes_received': 0}
    assert four['bytes_received'] == 2 * (3 + 3 + 4) * 150 * (8 + 8) * 4


def test_seconds_of_attention_grow_with_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, '_seconds_of_block', lambda *_: 1.0)
    pairs = attention._ROWS * attention._KEYS
    for num_ranks in (1, 3):
        found = predict_attention(1000, num_ranks, width=8, heads=2, layers=5)
        assert found.seconds == 5 * -(-1000 // num_ranks) * 1000 / pairs


@pytest.mark.slow
def test_command_line_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    graph = ['--nodes', '3000000', '--edges', '30000000', '--cut', '0.2@16']
    argv = [*graph, '--in', '8', '--out', '3', *SMALL, '--ranks', '16', '--memory', '900MB']
    assert plan.main(argv) == 0
    text = capsys.readouterr().out
    assert 'given' in text
    assert 'least number of ranks with 900 MB each: ' in text or 'do not suffice' in text


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        ([], 'expected a partition folder'),
        (['nowhere'], 'expected a partition folder at'),
        (['nowhere', '--nodes', '5'], 'got both'),
        (['--nodes', '5', '--edges', '5'], "expected '--in'"),
        (['--nodes', '5', '--edges', '5', '--in', '3'], "expected '--out'"),
        (['parts', '--memory', 'much'], 'expected a size'),
        (['parts', '--memory', '64'], '64 bytes? say 64GB'),
        (['parts', '--ranks', 'x'], 'expected numbers of ranks'),
        (['parts', '--ranks', '1,0'], 'expected numbers of ranks'),
        (['parts', '--cut', 'x'], 'expected NUMBER@RANKS'),
        (['nowhere', '--layers', '0'], 'argument --layers: expected a positive int'),
        (['parts', '--dropout', '1'], "'--dropout' must lie in [0, 1)"),
        (['parts', '--model', 'gat', '--hidden', '6'], "'--heads' must divide '--hidden'"),
        (['parts', '--attention', '6'], "'--heads' must divide '--attention'"),
        (['parts', '--bandwidth', '0'], "'bandwidth' must be positive"),
        (['parts', '--sampled', '5,x'], 'expected neighbours by hop'),
        (['parts', '--sampled', '5', '--memory', '1GB'], "'--memory' is for full batches"),
        (['parts', '--sampled', '5', '--no-time'], "'--no-time' is for full batches"),
        (['parts', '--sampled', '5', '--mode', 'one_shot'], "'--mode' is for full batches"),
        (['parts', '--batch-size', '5'], "'--batch-size' is for '--sampled' alone"),
        (['parts', '--links'], "'--links' is for '--sampled' alone"),
        (['parts', '--sampled', '5', '--links', '-1'], 'expected a number of negatives'),
    ],
)
def test_command_line_errors_are_one_line(
    parts: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match='2'):
        sys.exit(plan.main([str(parts) if word == 'parts' else word for word in argv]))
    text = capsys.readouterr().err
    assert text.startswith('error: ')
    assert text.count('\n') == 1
    assert message in text


def test_types_are_taken_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = HeteroData()
    data['a'].x, data['b'].x = torch.randn(30, 2), torch.randn(10, 6)
    data['b'].y = torch.arange(10) % 5
    data['a', 'to', 'b'].edge_index = torch.stack([torch.arange(30), torch.arange(30) % 10])
    data['b', 'rev', 'a'].edge_index = data['a', 'to', 'b'].edge_index.flip(0)
    root = tmp_path / 'parts'
    summary = pyg_sar.partition_graph(data, 2, root, seed=0)
    found = read_statistics(root)
    assert (found.num_nodes, found.num_edges, found.num_relations) == (40, 60, 2)
    assert (found.in_channels, found.num_classes) == (3, 5)
    assert found.folder is not None
    assert found.folder.halo_rows == [list(row) for row in summary.halo_rows]
    assert plan.main([str(root), *SMALL]) == 0
    told = capsys.readouterr().out
    assert '40 nodes, 60 directed edges' in told
    assert '2 relations' in told


def test_a_graph_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Data(x=torch.randn(30, 4), edge_index=torch.randint(30, (2, 90)), y=torch.arange(30) % 7)
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    assert read_statistics(tmp_path / 'parts').num_classes == 7
    assert plan.main([str(tmp_path / 'parts'), *SMALL]) == 0
    del data.y
    pyg_sar.partition_graph(data, 2, tmp_path / 'unlabelled')
    assert plan.main([str(tmp_path / 'unlabelled'), *SMALL]) == 2
    assert "expected '--out', the number of classes" in capsys.readouterr().err
