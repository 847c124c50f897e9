"""What a program reads of rows on one rank alone, as it prints on rank 0, and what is kept."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from on_ranks import on_ranks, on_threads
from some_rows import N, X, rows
from torch_geometric.utils import degree

import pyg_sar
from pyg_sar.comm.ranks import rank


@on_ranks(3, by='threads')
def test_shapes_are_known_without_asking(data: Any) -> None:
    x, edge_index = data.x, data.edge_index
    chosen = x[x[:, 0] > 0]
    found = [
        chosen,
        chosen[:, 0],
        chosen[chosen[:, 1] > 0],
        torch.cat([x, chosen]),
        chosen.repeat_interleave(3, 0),
        x[x > 0],
        x[(x[:, 0] > 0).nonzero().view(-1)],
        torch.where(x[:, 0] > 0)[0],
        x.masked_select(x < 0),
        edge_index[:, degree(edge_index[1], x.size(0))[edge_index[1]] > 1],
        pyg_sar.negative_sampling(edge_index, seed=1),
        edge_index[0][edge_index[0] > 2],
    ]
    if rank() == 0:
        for each in found:
            assert f'{each}' == repr(each)
            assert each.shape == each.size()
            assert each.numel() == each.shape.numel()
            assert each.size(each._dim) == each._sharding.total
            assert len(each) == each.shape[0]
    assert found[0].shape[0] == int(pyg_sar.gather(x)[:, 0].gt(0).sum())
    assert [each.sum().item() for each in found if each.is_floating_point()]


@on_threads(3)
def test_no_more_spaces_from_step_to_step() -> None:
    x, shardings, sums = rows(), [], []
    for step in range(30):
        chosen = x[x[:, 0] > (step - 15) / 10]
        again = x[x[:, 0] > (step - 15) / 10]
        both = torch.cat([x, chosen])
        loops = torch.cat([x, torch.ones(step + 1, 4, dtype=x.dtype)])
        wide = x[:, :1].expand(N, step + 2).reshape(-1)
        shardings += [weakref.ref(each._sharding) for each in (chosen, again, both, loops, wide)]
        sums.append(float(both.sum() + loops.sum() + (chosen - again).abs().sum()))
    del chosen, again, both, loops, wide
    gc.collect()
    assert sum(each() is not None for each in shardings) < len(shardings) / 2
    for step, found in enumerate(sums):
        right = X[X[:, 0] > (step - 15) / 10].sum() + 2 * X.sum() + 4 * (step + 1)
        torch.testing.assert_close(found, float(right))
