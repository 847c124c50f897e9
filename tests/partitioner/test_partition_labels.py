"""What the labels of the whole graph tell is on every rank, and lists of nodes become masks."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import hetero_graph
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.transforms import save_node_attrs

N, E = 8, 20


def _graph(**values: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(N, (2, E), generator=generator)
    return Data(edge_index=edge_index, num_nodes=N, **values)


def _parts(tmp_path: Path, data: Any, num_parts: int = 2) -> list[Any]:
    pyg_sar.partition_graph(data, num_parts, tmp_path / 'parts', method='range')
    return [pyg_sar.load_shard(tmp_path / 'parts', rank) for rank in range(num_parts)]


Y = torch.tensor([0, 1, 0, 1, 1, 4, 2, 0])


@pytest.mark.parametrize(
    ('y', 'num_classes', 'label_range'),
    [
        (Y, 5, [0, 4]),
        (Y.int().view(N, 1), 5, [0, 4]),
        (Y.to(torch.uint8) * 63, 253, [0, 252]),
        (torch.where(Y == 0, -1, Y), 5, [-1, 4]),
        (Y > 1, 2, [0, 1]),
        (torch.stack([Y > 0, Y > 1, Y > 2], dim=1).long(), 3, [0, 1]),
        (torch.full((N,), -1), None, [-1, -1]),
        (Y.float(), None, None),
        (None, None, None),
    ],
)
def test_classes_of_the_whole_graph(tmp_path, y, num_classes, label_range):
    for data in _parts(tmp_path, _graph(y=y)):
        assert getattr(data, 'num_classes', None) == num_classes
        assert getattr(data, 'label_range', None) == label_range


def test_what_the_user_stored_stays(tmp_path):
    for data in _parts(tmp_path, _graph(y=Y, num_classes=7, label_range='mine')):
        assert (data.num_classes, data.label_range) == (7, 'mine')


def test_an_attribute_of_nodes_by_that_name_stays(tmp_path):
    for data in _parts(tmp_path, _graph(y=Y, num_classes=torch.arange(N))):
        assert torch.equal(data.num_classes, data.n_id)


def test_a_dropped_num_classes_is_not_replaced(tmp_path):
    with pytest.warns(UserWarning, match=r'dropped .*num_classes'):
        parts = _parts(tmp_path, _graph(y=Y, num_classes=torch.arange(3)))
    assert 'num_classes' not in parts[0]


def test_every_type_of_nodes(tmp_path):
    data = hetero_graph()
    del data['paper'].num_classes
    data['author'].y = torch.arange(data['author'].num_nodes) % 9
    for part in _parts(tmp_path, data):
        assert (part['paper'].num_classes, part['paper'].label_range) == (3, [0, 2])
        assert part['author'].num_classes == 9
        assert 'num_classes' not in part['term']
        assert part['term'].num_nodes_total == data['term'].num_nodes
        assert part['author'].num_features == 4


def test_labels_written_later(tmp_path):
    pyg_sar.partition_graph(_graph(y=Y), 2, tmp_path / 'parts')
    data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    data.y = data.y - 1
    save_node_attrs(data, ['y'], overwrite=True)
    data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    assert (data.num_classes, data.label_range) == (5, [-1, 3])  # never fewer
    data.y = data.y + 8
    save_node_attrs(data, ['y'], overwrite=True)
    data = pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))
    assert (data.num_classes, data.label_range) == (12, [7, 11])


def test_lists_of_nodes_become_masks(tmp_path):
    data = _graph(train_idx=torch.tensor([5, 0]), valid_idx=torch.tensor([], dtype=torch.int32))
    data.test_idx = torch.tensor([7])
    data.test_mask = torch.arange(N) == 7  # the same once more
    found = torch.empty(N, dtype=torch.bool)
    for part in _parts(tmp_path, data):
        found[part.n_id] = part.train_mask
        assert not part.val_mask.any()
        assert torch.equal(part.test_mask, part.n_id == 7)
        assert not {'train_idx', 'valid_idx', 'test_idx'} & {*part.keys()}
    assert found.nonzero().view(-1).tolist() == [0, 5]


def test_a_list_of_all_nodes_and_of_as_many_as_edges(tmp_path):
    data = _graph(train_idx=torch.randperm(N), val_idx=torch.arange(E) % N)
    for part in _parts(tmp_path, data):
        assert part.train_mask.all()
        assert part.val_mask.all()


def test_a_row_per_node_by_that_name_stays(tmp_path):
    for part in _parts(tmp_path, _graph(train_idx=Y, test_idx=Y > 1)):
        assert torch.equal(part.train_idx, Y[part.n_id])
        assert torch.equal(part.test_idx, Y[part.n_id] > 1)


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'train_idx': torch.tensor([8])}, "'train_idx' must hold node ids in [0, 8) (got 8 to 8)"),
        ({'val_idx': torch.tensor([-1])}, "'val_idx' must hold node ids in [0, 8) (got -1 to -1)"),
        (
            {'train_idx': torch.tensor([1]), 'train_mask': torch.zeros(N, dtype=torch.bool)},
            "expected one of 'train_idx' and 'train_mask' (got both, and they differ)",
        ),
    ],
)
def test_lists_that_are_none(tmp_path, values, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pyg_sar.partition_graph(_graph(**values), 2, tmp_path / 'parts')
    assert not (tmp_path / 'parts').exists()


def test_pairs_of_nodes_are_told_where_they_are_kept(tmp_path):
    with pytest.warns(UserWarning, match=r'edge_label_index .*; docs/porting\.md tells where'):
        _parts(tmp_path, _graph(edge_label_index=torch.zeros(2, 3, dtype=torch.int64)))


def test_nothing_is_warned_about(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        _parts(tmp_path, _graph(y=Y, train_idx=torch.tensor([1])))
