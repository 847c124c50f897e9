"""The command line of the planner: python -m pyg_sar.plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from planner_models import cut_small_graph

from pyg_sar import plan
from pyg_sar.utils.meter import parse_bytes

MODELS = """
from torch_geometric.nn.models import GCN, GraphSAGE

def make_model():
    return GraphSAGE(6, 16, 2, 3)

weighted = GCN(6, 16, 2, 3)

def run_weighted(model, data):
    return model(data.x, data.edge_index, data.edge_weight)
"""


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cut_small_graph(tmp_path_factory.mktemp('planner') / 'parts')


@pytest.fixture(scope='module')
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp('models') / 'planned_models.py'
    path.write_text(MODELS)
    return path


def test_units() -> None:
    assert parse_bytes('64GB') == 64 * 10**9
    assert parse_bytes('1.5 GiB') == 3 << 29
    assert parse_bytes('100') == 100
    for text in ('64 XB', '0GB'):
        with pytest.raises(ValueError, match='expected a size'):
            parse_bytes(text)


def test_a_table_for_all_numbers_of_ranks(
    parts: Path, models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / 'plan.json'
    argv = [str(parts), f'{models}:make_model', '--memory', '1TB', '--json', str(out)]
    assert plan.main(argv) == 0
    text = capsys.readouterr().out
    for words in ('GraphSAGE, sequential', '931.3 GiB each: 1', 'no wall\nclock'):
        assert words in text
    report = json.loads(out.read_text())
    assert report['least_ranks'] == 1
    assert [p['num_ranks'] for p in report['predictions']] == [1, 2, 4]
    last = report['predictions'][-1]
    assert last['memory_bytes'] > last['peak_bytes'] + report['base_bytes']
    assert last['num_nodes'] == 150
    assert last['cpu_seconds'] > 0
    rows = [line.split() for line in text.splitlines() if line[:5].strip().isdecimal()]
    assert [row[0] for row in rows] == ['1', '2', '4']


def test_a_forward_of_the_users(
    parts: Path, models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forward = ['--forward', f'{models}:run_weighted', '--mode', 'one_shot']
    options = ['--ranks', '4,2', '--memory', '2MB', '--no-time']
    assert plan.main([str(parts), f'{models}:weighted', *forward, *options]) == 0
    text = capsys.readouterr().out
    assert 'GCN, one_shot' in text
    assert 'least number of ranks with 1.9 MiB each: none of these' in text
    assert 'CPU seconds' not in text


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (['parts'], 'arguments are required: MODEL'),
        (['nowhere', 'models:make_model'], 'expected a partition folder at'),
        (['parts', 'models:make_model', '--memory', 'much'], 'expected a size'),
        (['parts', 'models:make_model', '--ranks', 'x'], 'expected numbers of ranks'),
        (['parts', 'models:make_model', '--ranks', '1,0'], 'expected numbers of ranks'),
        (['parts', 'models:make_model', '--ranks', '3'], 'can be dealt: 1, 2, 4 (got 3)'),
        (['parts', 'models:nothing'], "expected 'nothing' in"),
        (['parts', 'make_model'], 'expected FILE.py:NAME'),
    ],
)
def test_errors_are_one_line(
    parts: Path,
    models: Path,
    argv: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [str(parts) if w == 'parts' else w.replace('models:', f'{models}:') for w in argv]
    with pytest.raises(SystemExit, match='2'):
        sys.exit(plan.main(words))
    text = capsys.readouterr().err
    assert text.startswith('error: ')
    assert text.count('\n') == 1
    assert message in text


@pytest.mark.parametrize('error', ["ValueError('mine')", "OSError('mine')"])
@pytest.mark.parametrize('where', ['forward', 'make'])
def test_an_error_of_the_users_has_its_traceback(
    parts: Path, tmp_path: Path, error: str, where: str
) -> None:
    path = tmp_path / f'broken_{where}_{error[0]}.py'
    path.write_text(
        'from torch_geometric.nn import GCNConv\n'
        'class Model(GCNConv):\n'
        '    def forward(self, x, edge_index):\n'
        f'        raise {error}\n'
        'def make():\n'
        f'    {"return Model(6, 2)" if where == "forward" else f"raise {error}"}\n'
    )
    with pytest.raises((ValueError, OSError), match='mine') as found:
        plan.main([str(parts), f'{path}:make', '--no-time'])
    assert any(str(entry.path) == str(path) for entry in found.traceback)
