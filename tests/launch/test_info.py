"""``pyg-sar info``: the report, the picture, and the files that --verify compares."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from partition_files import change_part, meta_of
from small_graphs import small_graph
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.__main__ import main
from pyg_sar.launch.info import wrong_files
from pyg_sar.shard.meta import read_meta

NUM_PARTS = 3


@pytest.fixture(scope='module')
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('info') / 'parts'
    pyg_sar.partition_graph(small_graph(), NUM_PARTS, root, method='random')
    return root


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / 'parts'))


def _change_meta(folder: Path, change: Callable[[Any], object]) -> None:
    path = folder / 'META.json'
    content = json.loads(path.read_text())
    change(content['pyg_sar'])
    path.write_text(json.dumps(content))


def test_a_whole_folder(written: Path) -> None:
    assert verify_partition(written) == []


DAMAGES = {
    'a feature': (1, 'node_feats.pt', "feats['x'].neg_()", 'was changed'),
    'a source': (1, 'graph.pt', 'row = row.roll(1)', 'the edges of part 1'),
    'a range': (2, 'sar.pt', 'dst = dst + 100', 'expected ids in'),
    "PyG's graph": (0, 'graph.pt', 'del col', 'holds no graph'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_damage_is_found(folder: Path, damage: str) -> None:
    part, name, statement, sentence = DAMAGES[damage]
    change_part(folder, name, statement, part)
    told = f"'{folder}/part_{part}/{name}' was changed after it was written"
    assert wrong_files(folder, read_meta(folder)) == [told]
    assert any(sentence in problem for problem in verify_partition(folder))


def test_files_of_the_folder(folder: Path) -> None:
    (folder / 'part_0' / 'edge_feats.pt').unlink()
    (folder / 'notes.txt').write_text('mine')
    _change_meta(folder, lambda ours: ours['partition'].update(seed=7))
    assert wrong_files(folder, read_meta(folder)) == [
        f"'{folder}/META.json' was changed after it was written",
        f"'{folder}/part_0/edge_feats.pt' is missing",
        f"'{folder}/notes.txt' is not a file of this partition",
    ]


@pytest.mark.slow
def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = folder.parent / 'parts.png'
    assert main(['info', str(folder), '--verify', '--plot', str(picture)]) == 0
    printed = capsys.readouterr().out
    for text in ('in 3 parts (random)', "'seed': 0", meta_of(folder)['fingerprint'], 'verified'):
        assert text in printed
    assert picture.read_bytes()[:4] == b'\x89PNG'

    (folder / 'node_map.pt').unlink()
    assert main(['info', str(folder), '--verify']) == 1
    assert 'node_map.pt' in capsys.readouterr().err
    assert main(['info', str(folder), '--plot', str(folder / 'none' / 'parts.png')]) == 2
    assert 'No such file' in capsys.readouterr().err


def test_verifies_without_matplotlib(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    assert main(['info', str(folder), '--plot', str(folder.parent / 'parts.png'), '--verify']) == 2
    told = capsys.readouterr()
    assert 'verified: every file' in told.out
    assert "install it with pip install 'pyg_sar[plot]'" in told.err


ESCAPE = '\x1b[1mbold\x1b[0m\nverified: every file is as it was written'


@pytest.mark.parametrize(
    'change',
    [
        lambda ours: ours.update(command=['echo', ESCAPE]),
        lambda ours: ours.update(command=ESCAPE),
        lambda ours: ours['partition'].update(method=ESCAPE),
        lambda ours: ours['partition'].update({ESCAPE: [ESCAPE]}),
        lambda ours: ours['versions'].update({ESCAPE: ESCAPE}),
    ],
)
def test_notes_of_a_stranger_are_no_orders_to_a_terminal(folder, capsys, change):
    _change_meta(folder, change)
    assert main(['info', str(folder)]) == 0
    told = capsys.readouterr().out
    assert '\x1b' not in told
    assert r'\x1b[1mbold\x1b[0m\nverified' in told


@pytest.mark.parametrize(
    'change',
    [
        lambda ours: ours.update(fingerprint=ESCAPE),
        lambda ours: ours['graph_attrs'].update({ESCAPE: 1}),
        lambda ours: ours['node_attrs'].update({ESCAPE: ours['node_attrs']['x']}),
        lambda ours: ours['node_attrs']['x'].update(dtype=ESCAPE),
        lambda ours: ours.update(dropped={'': {'name': ESCAPE}}),
        lambda ours: ours['checksums'].update({ESCAPE: ''}),
    ],
)
def test_names_of_a_stranger_are_printable(folder, capsys, change):
    _change_meta(folder, change)
    assert main(['info', str(folder), '--verify']) == 2
    told = capsys.readouterr()
    assert told.err.startswith('error: expected ')
    assert '\x1b' not in told.err + told.out
    with pytest.raises(ValueError, match='expected') as found:
        pyg_sar.load_shard(folder)
    assert '\x1b' not in str(found.value)


def test_a_file_of_a_stranger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / '\x1b[1m').touch()
    assert main(['info', str(folder), '--verify']) == 1
    assert r'\x1b[1m' in capsys.readouterr().err
