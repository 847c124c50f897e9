"""The different values of all ranks' rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import run_as_threads, run_ranks
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


def _asked(data: Any) -> dict[str, list[Tensor]]:
    found = {}
    for dtype in DTYPES:
        name = str(dtype).replace('torch.', 'of_')
        rows = data[name]
        inverse = {'return_inverse': True, 'return_counts': True}
        found[name] = [
            rows[:, 0].unique(),
            torch.unique(rows, sorted=False),
            *torch.unique(rows, **inverse),
            *rows[:, 1].unique(return_counts=True),
        ]
        if not rows.is_floating_point() or not rows.isnan().any():
            found[name] += [*torch.unique(rows, dim=0, **inverse), rows.unique(dim=0)]
    return {name: [pyg_sar.gather(t) for t in tensors] for name, tensors in found.items()}


def _on_parts(root: Path) -> dict[str, list[Tensor]]:
    return _asked(pyg_sar.load_shard(root))


@pytest.mark.parametrize('kind', ['few', 'nan', 'a rank with none'])
@pytest.mark.parametrize('world_size', [1, 3])
def test_as_one_process(tmp_path: Path, kind: str, world_size: int) -> None:
    data = _columns(kind)
    of = torch.arange(NUM_NODES) % (2 if kind == 'a rank with none' else 3)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=of)
    expected = _asked(data)
    runs = [run_ranks(_on_parts, world_size, tmp_path / 'parts')]
    runs += [run_as_threads(_on_parts, world_size, tmp_path / 'parts')] if world_size > 1 else []
    for found in (each for run in runs for each in run):
        for name, tensors in expected.items():
            for i, (ours, theirs) in enumerate(zip(found[name], tensors, strict=True)):
                assert ours.dtype == theirs.dtype
                if i == 3 and data[name].isnan().any():  # torch gives NaNs places in any order
                    ours, theirs = found[name][2][ours], tensors[2][theirs]
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def _longest_text(root: Path) -> int:
    """The characters of the longest text that this rank sends for the ids of all."""
    data, encode = pyg_sar.load_shard(root), plain_values.encode
    lengths = [0]

    def noting(value: Any) -> bytes:
        text = encode(value)
        lengths.append(len(text))
        return text

    with mock.patch('pyg_sar.comm.vote.encode', noting):
        assert data.n_id.unique().numel() == 600
    return max(lengths)


def test_values_do_not_travel_as_text(tmp_path: Path) -> None:
    data = Data(edge_index=torch.zeros(2, 1, dtype=torch.int64), num_nodes=600)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.arange(600) % 3)
    assert max(run_ranks(_longest_text, 3, tmp_path / 'parts')) < len(json.dumps([0] * 200))
