"""The random split."""

from __future__ import annotations

import pytest
import torch
from graph_files import whole

from pyg_sar.partition.masks import random_split
from pyg_sar.partition.partition_graph import partition_graph

FRACTIONS = (0.6, 0.2, 0.2)
UNSIGNED = torch.uint8, torch.uint16, torch.uint32, torch.uint64


def _counts(masks: dict[str, torch.Tensor]) -> list[int]:
    assert int(torch.stack(list(masks.values())).sum(dim=0).max()) <= 1  # Disjoint.
    return [int(mask.sum()) for mask in masks.values()]


@pytest.mark.parametrize(
    ('y', 'labelled'),
    [
        (None, [True] * 4),
        (torch.tensor([0, -1, 3, -100]), [True, False, True, False]),
        (torch.tensor([[0], [-1], [3], [2]]), [True, False, True, True]),
        (torch.tensor([0.0, torch.nan, -3.0, 1.0]), [True, False, True, True]),
        (
            torch.tensor([[1, torch.nan], [torch.nan] * 2, [0, 0], [1, 1]]),
            [True, False, True, True],
        ),
        (torch.tensor([True, False, False, True]), [True] * 4),
        *((torch.arange(4).to(dtype), [True] * 4) for dtype in UNSIGNED),
    ],
)
def test_labelled(y, labelled):
    masks = random_split(y, 4, (1.0, 0.0, 0.0), seed=0)
    assert masks['train_mask'].tolist() == labelled


def test_rounding():
    assert _counts(random_split(None, 7, (0.5, 0.5, 0.0), seed=0)) == [4, 3, 0]
    assert _counts(random_split(None, 10, (0.34, 0.33, 0.33), seed=0)) == [3, 3, 4]
    assert _counts(random_split(None, 1, FRACTIONS, seed=0)) == [1, 0, 0]


def test_seed():
    a, b, c = (random_split(None, 100, FRACTIONS, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(a['train_mask'], b['train_mask'])
    assert not torch.equal(a['train_mask'], c['train_mask'])


@pytest.mark.parametrize('split', ['0.5/0.3/0.2', (0.5, 0.3, 0.2)])
def test_masks_are_written(graph, tmp_path, check_partition, split):
    del graph.train_mask
    partition_graph(graph, 3, tmp_path / 'out', split=split, seed=7)
    expected = graph.clone()
    expected.update(random_split(graph.y, graph.num_nodes, (0.5, 0.3, 0.2), seed=7))
    names = ('x', 'y', 'pos', 'train_mask', 'val_mask', 'test_mask')
    check_partition(tmp_path / 'out', expected, 3, node_attrs=names)
    assert 'train_mask' not in graph


def test_the_same_for_any_number_of_parts(graph, tmp_path):
    del graph.train_mask
    for num_parts in (1, 4):
        partition_graph(graph, num_parts, tmp_path / f'{num_parts}', split='0.5/0.3/0.2')
    assert whole(tmp_path / '1', 'train_mask') == whole(tmp_path / '4', 'train_mask')
