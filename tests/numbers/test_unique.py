"""The different values of all ranks' rows."""

from __future__ import annotations

import json
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from alike import Wrap, assert_alike, cut_of
from ranks import run_ranks
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm import plain_values

NUM_NODES = 31
WHOLE = (torch.int64, torch.int32, torch.uint8, torch.bool)
DTYPES = (*WHOLE, torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _columns(kind: str) -> Data:
    """A column of every dtype, with few values or with NaN; and rows of two numbers."""
    generator = torch.Generator().manual_seed(2)
    data = Data(edge_index=torch.randint(NUM_NODES, (2, 60), generator=generator))
    numbers = torch.randint(-4, 5, (NUM_NODES, 2), generator=generator).double()
    for dtype in DTYPES:
        column = numbers.abs() if dtype == torch.uint8 else numbers
        data[str(dtype).replace('torch.', 'of_')] = column.to(dtype)
    if kind == 'nan':
        for dtype in (torch.float64, torch.float16):
            data[str(dtype).replace('torch.', 'of_')][::3, 0] = torch.nan
    data.num_nodes = NUM_NODES
    return data


def _asked(data: Any, wrap: Wrap) -> dict[str, list[Tensor]]:
    found, options = {}, {'return_inverse': True, 'return_counts': True}
    for dtype in DTYPES:
        name = str(dtype).replace('torch.', 'of_')
        rows = data[name]
        has_nan = rows.is_floating_point() and bool(rows.isnan().any())
        values, inverse, counts = torch.unique(rows, **options)
        # NaNs have places in any order.
        found[name] = [values, values[inverse] if has_nan else inverse, counts]
        found[name] += [rows[:, 0].unique(), torch.unique(rows, sorted=False)]
        found[name] += rows[:, 1].unique(return_counts=True)
        if not has_nan:
            found[name] += [*torch.unique(rows, dim=0, **options), rows.unique(dim=0)]
    return found


@pytest.mark.parametrize('kind', ['few', 'nan', 'a rank with none'])
@pytest.mark.parametrize(('world_size', 'by'), [(1, ''), (3, 'processes'), (3, 'threads')])
def test_as_one_process(kind: str, world_size: int, by: str) -> None:
    cut = [i % (2 if kind == 'a rank with none' else 3) for i in range(NUM_NODES)]
    options = {'parts': 3, 'by': by, 'tolerance': 0, 'equal_nan': True}
    graph = partial(_columns, kind)
    assert_alike(_asked, graph=graph, cut=cut, ranks=[world_size], **options)


def _of_six_hundred() -> Data:
    return Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=600)


def _longest_text(root: str) -> int:
    """The characters of the longest text that this rank sends for the ids of all."""
    data = pyg_sar.load_shard(root)
    lengths = [0]

    def noting(value: Any) -> bytes:
        text = plain_values.encode(value)
        lengths.append(len(text))
        return text

    with mock.patch('pyg_sar.comm.vote.encode', noting):
        assert data.n_id.unique().numel() == 600
    return max(lengths)


def test_values_do_not_travel_as_text() -> None:
    root = cut_of(_of_six_hundred, 3, [i % 3 for i in range(600)])
    assert max(run_ranks(_longest_text, 3, root)) < len(json.dumps([0] * 200))
