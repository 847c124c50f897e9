"""Names of nodes, from the graph to what ranks and files have of them."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_as_threads
from torch_geometric.data import Data, HeteroData

import pyg_sar
from pyg_sar.shard.node_names import NodeNames

pyarrow = pytest.importorskip('pyarrow')

NAMES = [f'node {i}' for i in range(10)]


def _graph(names: Any = NAMES) -> Data:
    edge_index = torch.randint(10, (2, 40), generator=torch.Generator().manual_seed(0))
    return Data(x=torch.arange(10.0)[:, None], edge_index=edge_index, node_names=names)


def _check_on_rank(root: str, out: str) -> None:
    data = pyg_sar.load_shard(root)
    pyg_sar.save_rows(out, data.x[:, 0], data)
    names, own = data.node_names, pyg_sar.local(data)
    assert pyg_sar.gather(names) == NAMES
    assert (names[3], names[torch.tensor([7, 1])]) == (NAMES[3], [NAMES[7], NAMES[1]])
    assert [names[i] for i in own.n_id] == [NAMES[int(v)] for v in own.x[:, 0]]


@pytest.mark.parametrize('world_size', [1, 3])
def test_on_ranks(tmp_path: Path, world_size: int) -> None:
    parts, out = tmp_path / 'parts', tmp_path / 'out.npy'
    pyg_sar.partition_graph(_graph(), 3, parts)
    run_as_threads(_check_on_rank, world_size, str(parts), str(out))
    table = pyarrow.ipc.open_file(tmp_path / 'out.names.arrow').read_all()
    assert table.column('name').to_pylist() == NAMES
    assert np.load(out).tolist() == [*range(10)]


def test_types(tmp_path: Path) -> None:
    films = {'x': torch.ones(2, 1), 'node_names': ['Alien', 'Brazil']}
    saw = {'edge_index': torch.tensor([[0, 1, 2], [0, 1, 1]])}
    data = HeteroData({'user': {'num_nodes': 3}, 'film': films, ('user', 'saw', 'film'): saw})
    pyg_sar.partition_graph(data, 2, tmp_path / 'parts')
    loaded = pyg_sar.load_shard(tmp_path / 'parts')
    assert loaded['film'].node_names[:] == ['Alien', 'Brazil']
    assert 'node_names' not in loaded['user']
    pyg_sar.save_rows(tmp_path / 'a.npy', loaded['film'].x, loaded['film'])
    assert (tmp_path / 'a.names.arrow').is_file()


def test_a_sequence(tmp_path: Path) -> None:
    pyg_sar.partition_graph(_graph(range(100, 110)), 2, tmp_path / 'parts')
    data = pyg_sar.load_shard(tmp_path / 'parts')
    names = data.to('cpu').clone().contiguous().node_names
    assert type(names) is NodeNames
    assert (len(names), list(names), names[-1]) == (10, [*range(100, 110)], 109)
    assert names[2:6:2] == [102, 104]
    assert (103 in names, 50 in names) == (True, False)
    for other in (copy.deepcopy(names), pickle.loads(pickle.dumps(names))):
        assert list(other) == list(names)
    with pytest.raises(IndexError, match='an id below 10'):
        names[10]


@pytest.mark.parametrize(
    ('names', 'message'),
    [
        (NAMES[:4], 'one name per node, 10 .got 4'),
        ([None, *NAMES[1:]], 'of which 1 are None'),
        ([{'a'}] * 10, "a list of names in 'node_names'"),
    ],
)
def test_wrong_names(tmp_path: Path, names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pyg_sar.partition_graph(_graph(names), 2, tmp_path / 'parts')


def test_a_changed_file_is_told(tmp_path: Path) -> None:
    pyg_sar.partition_graph(_graph(), 2, tmp_path / 'parts')
    path = tmp_path / 'parts' / 'node_names.arrow'
    path.write_bytes(path.read_bytes()[:-1] + b'?')
    with pytest.raises(ValueError, match=r'node_names.arrow. as it was written'):
        pyg_sar.load_shard(tmp_path / 'parts')
    with pytest.raises(ValueError, match='expected names in'):
        len(NodeNames(path))
