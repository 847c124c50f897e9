"""Keys that are masked: some, all of one rank, or all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from small_graphs import assert_close
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar

N, HEADS, WIDTH = 23, 2, 4
PARTS = torch.arange(N) % 3


def _asked(case: str) -> Tensor:
    """Which keys are asked."""
    return {
        'some': torch.arange(N) % 4 > 0,
        'none of rank 1': PARTS != 1,
        'one': torch.arange(N) == 5,
        'none': torch.zeros(N, dtype=torch.bool),
    }[case]


def _attended(x: Tensor, mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The output, and the gradient of `x`, from which queries, keys and values come."""
    x = x.to(dtype).detach().requires_grad_()
    query, key, value = ((x * scale).view(N, HEADS, WIDTH).movedim(0, 1) for scale in (1, 2, 3))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[None, None])
    out.sin().sum().backward()
    assert x.grad is not None
    return out.detach(), x.grad


def _graph(case: str) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, HEADS * WIDTH, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=torch.arange(N).repeat(2, 1), asked=_asked(case))


def _on_rank(root: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    data = pyg_sar.load_shard(root)
    return tuple(pyg_sar.gather(t) for t in _attended(data.x, data.asked, dtype))


@pytest.mark.parametrize('dtype', few([torch.float64, torch.float32]))
@pytest.mark.parametrize('case', ['some', 'none of rank 1', 'one', 'none'])
def test_masked_keys(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    data = _graph(case)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=PARTS)
    want = _attended(data.x, data.asked, dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for got in run_ranks(_on_rank, 3, str(tmp_path / 'parts'), dtype):
        for value, expected in zip(got, want, strict=True):
            assert_close(value, expected, tolerance=tolerance)
