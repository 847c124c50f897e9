"""Folders of GraphSAINT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command, content, whole
from torch_geometric.datasets import Flickr

from pyg_sar.partition.sources import graphsaint, load_source

N = 40
CLASSES = np.random.default_rng(1).integers(0, 5, N).tolist()
LABELS = np.random.default_rng(2).integers(0, 2, (N, 6)).tolist()
ROLES = {'tr': list(range(0, N, 2)), 'va': [1, 3, 9], 'te': [5, 39]}


def _write(folder: Path, classes: Any = CLASSES, roles: Any = ROLES) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    dense = rng.random((N, N)) < 0.2
    dense[7] = False
    np.savez_compressed(
        folder / 'adj_full.npz',
        indices=np.nonzero(dense)[1].astype(np.int32),
        indptr=np.concatenate([[0], dense.sum(1).cumsum()]).astype(np.int32),
        format=np.array(b'csr'),
        shape=np.array([N, N]),
        data=np.ones(dense.sum()),
    )
    np.save(folder / 'feats.npy', rng.random((N, 3)))
    text = {str(i): classes[i] for i in rng.permutation(N).tolist()}
    (folder / 'class_map.json').write_text(json.dumps(text))
    (folder / 'role.json').write_text(json.dumps(roles))
    (folder / 'adj_train.npz').write_bytes(b'not read')
    return folder


@pytest.mark.parametrize('size', [11, 1 << 20])
@pytest.mark.parametrize('classes', [CLASSES, LABELS], ids=['classes', 'labels'])
def test_as_pyg_reads_it(tmp_path, monkeypatch, classes, scratch, size):
    """The same as PyG's class, which reads the same files, but for floats of several labels."""
    pytest.importorskip('scipy')
    monkeypatch.setattr(graphsaint, 'PIECE', size)
    _write(tmp_path / 'raw', classes)
    want = Flickr(str(tmp_path))[0]
    found = load_source(tmp_path / 'raw', scratch=scratch)
    assert content(found) == {**content(want), 'num_nodes': N}
    assert found.x.dtype == torch.float32
    assert found.y.dtype == (torch.int64 if classes is CLASSES else torch.float32)
    assert found.train_mask.dtype == torch.bool


def test_features_of_32_bits_and_weights_stay(tmp_path, scratch):
    folder = _write(tmp_path)
    feats = np.load(folder / 'feats.npy').astype(np.float32)
    np.save(folder / 'feats.npy', feats)
    arrays = dict(np.load(folder / 'adj_full.npz'))
    arrays['data'][0] = 3
    np.savez(folder / 'adj_full.npz', **arrays)
    data = load_source(folder, scratch=scratch)
    assert torch.equal(data.x, torch.from_numpy(feats))
    assert data.edge_weight.tolist() == arrays['data'].tolist()


def test_nodes_without_a_class_are_told(tmp_path):
    folder = _write(tmp_path)
    for value, label in ((2, -1), ([0, 1], [torch.nan, torch.nan])):
        (folder / 'class_map.json').write_text(json.dumps({'3': value, '0': value}))
        with pytest.warns(UserWarning, match=f'{N - 2} nodes have no class in .*class_map.json'):
            y = load_source(folder).y
        assert y[3].tolist() == value
        assert torch.equal(y[1], torch.tensor(label)) or y[1].isnan().all()


def test_missing_files_are_named(tmp_path):
    folder = _write(tmp_path / 'a')
    for name in ('adj_full.npz', 'feats.npy', 'class_map.json', 'role.json'):
        (folder / name).rename(tmp_path / name)
        with pytest.raises(ValueError, match=rf'role.json in .*a. .got no {name}.$'):
            load_source(folder)
        (tmp_path / name).rename(folder / name)
    (folder / 'feats.npy').unlink()
    (folder / 'role.json').unlink()
    with pytest.raises(ValueError, match=r'got no feats\.npy and no role\.json.'):
        load_source(folder)


BAD_CLASSES: list[tuple[str, str]] = [
    ('{"0": 1, "40": 1}', r"nodes from 0 to 39, each once, .*got '40'"),
    ('{"0": 1, "a": 1}', r"each once, .*got 'a'"),
    ('{"0": 1, "0": 2}', r"each once, .*got '0'"),
    ('{"0": 1, "1": [0, 1]}', r"a class >= 0, or -1 for none for node '1' .*got \[0, 1\]"),
    ('{"0": 1, "1": -2}', r"a class >= 0, or -1 for none for node '1' .*got -2"),
    ('{"0": [1, 0], "1": [0, 1, 0]}', r"2 numbers 0 or 1 for node '1' .*got \[0, 1, 0\]"),
    ('{"0": [1, 0], "1": [0, 2]}', r"2 numbers 0 or 1 for node '1' .*got \[0, 2\]"),
    ('{"0": [1, 0], "1": 1}', r"2 numbers 0 or 1 for node '1' .*got 1"),
    ('{"0": 1.5}', r"expected JSON of one class, .*got '{\"0\": 1.5}'"),
    ('{"0": 1, "1": "a"}', r"expected JSON of one class, .*got ', \"1\": \"a\"}'"),
    ('{"0": 1', r'expected JSON of one class'),
    ('{"0": 1} 5', r"expected JSON of one class, .*got '} 5'"),
    ('{"0": 1, {"1": 1}', r'expected JSON of one class'),
    (', "0": 1}', r'expected JSON of one class'),
    ('[1, 2]', r"expected JSON of one class, .*got '\[1, 2\]'"),
    ('', r'expected JSON of one class'),
    ('{ }', r'expected a class for each node .*got none'),
]
BAD_SPLITS: list[tuple[Any, str]] = [
    ({'tr': [0], 'va': [1]}, r"lists of nodes 'tr', 'va' and 'te' .*got KeyError\('te'\)"),
    ({**ROLES, 'te': [40]}, r"'te' of .* must hold node ids in \[0, 40\) .got 40 to 40"),
    ({**ROLES, 'te': [-1]}, r'got -1 to -1'),
    ({**ROLES, 'te': [1.5]}, r'an entry that is no whole number'),
    ({**ROLES, 'te': ['1']}, r'an entry that is no whole number'),
    ({**ROLES, 'te': [[1], [2, 3]]}, r"lists of nodes 'tr', 'va' and 'te'"),
    ({**ROLES, 'te': 1}, r'an entry that is no whole number'),
    ([1], r"lists of nodes 'tr', 'va' and 'te'"),
]


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        *(('class_map.json', *case) for case in BAD_CLASSES),
        *(('role.json', json.dumps(roles), message) for roles, message in BAD_SPLITS),
    ],
)
def test_bad_classes_and_splits(tmp_path, name, text, message):
    (_write(tmp_path) / name).write_text(text)
    with pytest.raises(ValueError, match=message) as told:
        load_source(tmp_path)
    assert name in str(told.value)


def test_an_empty_set_is_a_mask_of_none(tmp_path):
    data = load_source(_write(tmp_path, roles={**ROLES, 'te': []}))
    assert not data.test_mask.any()
    assert data.val_mask.nonzero().view(-1).tolist() == ROLES['va']
    with pytest.warns(UserWarning, match=r"left out of '.*role.json': more$"):
        load_source(_write(tmp_path, roles={**ROLES, 'more': [3]}))


def test_sizes_that_differ(tmp_path):
    folder = _write(tmp_path)
    np.save(folder / 'feats.npy', np.ones((N + 1, 2)))
    with pytest.raises(ValueError, match=r'numbers \[40, features\] .*got float64 \[41, 2\]'):
        load_source(folder)
    arrays = dict(np.load(folder / 'adj_full.npz'))
    for change, told in (
        ({'shape': np.array([N, N + 1])}, r'a square matrix in .*adj_full.npz. .got \(40, 41\)'),
        ({'format': np.array('dia')}, r"format csr, csc or coo in .*adj_full.npz. .got 'dia'"),
    ):
        np.savez(folder / 'adj_full.npz', **{**arrays, **change})
        with pytest.raises(ValueError, match=told):
            load_source(folder)


@pytest.mark.filterwarnings('ignore:not read in .* class_map.json, role.json')
def test_a_folder_of_arrays_may_have_a_file_of_that_name(tmp_path):
    folder = _write(tmp_path)
    np.save(folder / 'edge_index.npy', np.array([[0, 1], [1, 2]]))
    assert load_source(folder).edge_index.tolist() == [[0, 1], [1, 2]]


def test_command_line(tmp_path, capsys):
    folder = _write(tmp_path / 'a', LABELS)
    assert command(folder, tmp_path / 'out', '--method', 'range') == 0
    assert whole(tmp_path / 'out', 'y') == LABELS
    (folder / 'role.json').unlink()
    assert command(folder, tmp_path / 'no', '--method', 'range') == 2
    assert 'got no role.json' in capsys.readouterr().err
