"""Operators of torch_scatter, and layers that look at one row at a time, as on one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.nn import MemPooling

import pyg_sar

NUM_RANKS = 3
IDS = torch.tensor([1, 2, 3, 2])
FEW = torch.arange(24, dtype=torch.double).view(4, 6) - 12


def _layer(kind: Callable[..., torch.nn.Module], *args: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args).double()


def _results(data: Any) -> list[Tensor]:
    """Values and gradients."""
    x, y = data.x, data.y
    calls: list[Callable[[Any], Any]] = [
        lambda x: _layer(torch.nn.Conv1d, 6, 4, 1)(x.t()[None])[0].t(),
        lambda x: _layer(torch.nn.Conv1d, 6, 4, 1)(x.t()),
        lambda x: _layer(torch.nn.Conv2d, 6, 4, (1, 2))(torch.stack([x.t(), 2 * x.t()], 2)[None]),
        lambda x: _layer(MemPooling, 6, 4, 2, 3)(x)[0],
        lambda x: x.scatter_add(0, IDS[:, None].expand(4, 6), FEW).square(),
        lambda x: x.scatter_reduce(0, IDS[:, None].expand(4, 6), FEW, 'amax') * x,
        lambda x: max(x[:, 0]),
        lambda x: x.sum(0)[None].expand(3, 6).gather(0, y[:, None].expand(-1, 6)) * x,
    ]
    return [result for call in calls for result in _with_gradient(call, x)]


def _scattered(data: Any) -> list[Tensor]:
    import torch_scatter as ts

    calls = [
        lambda x: ts.scatter_std(x, data.y, 0),
        lambda x: ts.scatter(x, data.y, 0, reduce='mean'),
    ]
    return [result for call in calls for result in _with_gradient(call, data.x)]


def _with_gradient(call: Callable[[Any], Any], x: Any) -> list[Tensor]:
    x = x.detach().clone().requires_grad_()
    outs = call(x)
    outs = outs if isinstance(outs, tuple) else (outs,)
    weights = torch.linspace(1, 2, outs[0].numel(), dtype=x.dtype).view(outs[0].shape)
    (outs[0] * weights).sum().backward()
    return [value.detach() for value in (x.grad, *outs)]


def _on_ranks(root: str, what: Callable[[Any], list[Any]]) -> list[Tensor]:
    results = what(pyg_sar.load_shard(root))
    return [pyg_sar.gather(r) if type(r) is not Tensor else r for r in results]


@pytest.mark.parametrize('what', [_results, _scattered])
@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_as_on_one_process(what: Callable[[Any], list[Any]], kind: str, tmp_path: Path) -> None:
    if what is _scattered:
        pytest.importorskip('torch_scatter')
    root = cut(small_graph(), NUM_RANKS, tmp_path / 'parts', kind)
    want = what(small_graph())
    for got in run_ranks(_on_ranks, NUM_RANKS, str(root), what):
        assert len(got) == len(want)
        for of_ranks, of_one in zip(got, want, strict=True):
            assert torch.allclose(of_ranks, of_one, 1e-10, 1e-10, equal_nan=True)
