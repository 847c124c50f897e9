"""DGL's partitions: what DGL 2.1.0 gave of its own folders (tests/data), converted and read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import convert_dgl
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition.__main__ import main
from pyg_sar.partition.sources.arrays import own_parts
from pyg_sar.partition.sources.sources import load_source

RECORDED = Path(__file__).parents[1] / 'data' / 'dgl_partitions.npz'
NAMES = ('homo', 'hetero')


@pytest.fixture(scope='module')
def recorded() -> dict[str, torch.Tensor]:
    with np.load(RECORDED) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


@pytest.fixture
def folder(recorded, tmp_path, monkeypatch) -> Path:
    """The graphs converted, with load_partition giving what it gave in DGL's environment."""

    def load_partition(config: str, part: int) -> tuple[Any, Any, Any]:
        prefix = f'{Path(config).stem}/{part}/'
        content = _under(recorded, prefix)
        graph = SimpleNamespace(
            ndata=_under(content, 'ndata/'),
            edata=_under(content, 'edata/'),
            edges=lambda: tuple(content['edges']),
        )
        return graph, _under(content, 'node_feats/'), _under(content, 'edge_feats/')

    distributed = ModuleType('dgl.distributed')
    distributed.load_partition = load_partition
    dgl = ModuleType('dgl')
    dgl.distributed = distributed
    monkeypatch.setitem(sys.modules, 'dgl', dgl)
    monkeypatch.setitem(sys.modules, 'dgl.distributed', distributed)
    for name in NAMES:
        config = tmp_path / f'{name}.json'
        config.write_bytes(bytes(recorded[f'{name}/json'].tolist()))
        assert convert_dgl.main([str(config), str(tmp_path / name)]) == 0
    return tmp_path


def _under(values: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _rows(values: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(row) for row in values.reshape(len(values), -1).tolist()]


def _original_ids(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Where rows stood before DGL ordered them by part; the rows differ."""
    place = {row: i for i, row in enumerate(_rows(original))}
    ids = torch.tensor([place[row] for row in _rows(values)])
    assert ids.sort()[0].tolist() == list(range(len(original)))
    return ids


def test_homogeneous(folder, recorded):
    """The graph is the original one, its nodes renamed."""
    data = load_source(folder / 'homo')
    nodes, edges = '_N', '_N:_E:_N'
    n_id = _original_ids(data.x, recorded[f'homo/node_feats/{nodes}/features'])
    assert torch.equal(data.y, recorded[f'homo/node_feats/{nodes}/labels'][n_id])
    assert torch.equal(data.train_mask, recorded[f'homo/node_feats/{nodes}/train_mask'][n_id])
    assert data.train_mask.dtype is torch.bool
    e_id = _original_ids(data.weight, recorded[f'homo/edge_feats/{edges}/weight'])
    assert torch.equal(n_id[data.edge_index], recorded[f'homo/edges/{edges}'][:, e_id])


def test_heterogeneous(folder, recorded):
    data = load_source(folder / 'hetero')
    paper = _original_ids(data['paper'].x, recorded['hetero/node_feats/paper/feat'])
    author = recorded['hetero/node_feats/author/key'][data['author'].key]
    assert torch.equal(data['author'].key, author)
    assert sorted(author.tolist()) == list(range(5))
    writes = data['author', 'writes', 'paper']
    e_id = _original_ids(writes.edge_attr, recorded['hetero/edge_feats/author:writes:paper/feat'])
    ends = torch.stack([author[writes.edge_index[0]], paper[writes.edge_index[1]]])
    assert torch.equal(ends, recorded['hetero/edges/author:writes:paper'][:, e_id])
    cites = paper[data['paper', 'cites', 'paper'].edge_index]
    expected = recorded['hetero/edges/paper:cites:paper']
    assert sorted(_rows(cites.t())) == sorted(_rows(expected.t()))


@pytest.mark.parametrize('name', NAMES)
def test_parts_are_kept(folder, tmp_path, name, capsys):
    assert main([str(folder / name), str(tmp_path / 'out'), '--quiet']) == 0
    assert capsys.readouterr().err == ''
    meta = json.loads((folder / f'{name}.json').read_text())
    data = load_source(folder / name)
    parts, num_parts = own_parts(folder / name)
    assert num_parts == meta['num_parts'] == 2
    loaded = [pyg_sar.load_shard(tmp_path / 'out', part) for part in range(2)]
    for key, ranges in meta['node_map'].items():
        first = 0
        for part, (start, end) in enumerate(ranges):
            store = loaded[part] if isinstance(data, Data) else loaded[part][key]
            assert store.n_id.tolist() == list(range(first, first + end - start))
            owner = parts if isinstance(data, Data) else parts[key]
            assert (owner[store.n_id] == part).all()
            first += end - start


def test_refused(folder, tmp_path, capsys):
    config = tmp_path / 'homo.json'
    assert convert_dgl.main([str(config), str(folder / 'homo')]) == 2
    assert 'expected a new or empty folder' in capsys.readouterr().err
    meta = json.loads(config.read_text())
    meta['edge_map'] = {'_E': meta['edge_map']['_N:_E:_N']}
    config.write_text(json.dumps(meta))
    assert convert_dgl.main([str(config), str(tmp_path / 'new')]) == 2
    assert "relations as 'source:name:destination'" in capsys.readouterr().err
    config.write_text('{}')
    assert convert_dgl.main([str(config), str(tmp_path / 'new')]) == 2
    assert 'the .json file of a DGL partition' in capsys.readouterr().err
    assert not (tmp_path / 'new').exists()
