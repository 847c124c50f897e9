"""Rows of any nodes, by their ids: values and gradients of the whole graph on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.rows_by_id import rows


class Decoder(nn.Module):
    """An inner product over the ends of labelled edges, in ids of the whole graph."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = SAGEConv(6, 4).double()

    def forward(self, data: Any, labels: Tensor) -> Tensor:
        out = self.conv(data.x, data.edge_index)
        is_plain = 'n_id' not in data
        own, n_id = (out, None) if is_plain else pyg_sar.local((out, data.n_id))
        z = out[labels] if is_plain else rows(own, labels, n_id)
        return (z[0] * z[1]).sum(dim=-1)


def _labels(num_nodes: int) -> Tensor:
    return torch.randint(num_nodes, (2, 50), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
@on_ranks(by='threads')
def test_rows(data, world_size):
    """Every rank has another number of the labelled edges."""
    whole = small_graph()
    labels = _labels(whole.num_nodes)
    ends = [0, *(50 * (i + 1) ** 2 // world_size**2 for i in range(world_size))]
    own = labels[:, ends[rank()] : ends[rank() + 1]]
    plain = Decoder()
    want = plain(whole, labels)
    want.square().mean().backward()
    model = pyg_sar.DistributedDataParallel(Decoder())
    for _ in range(2):  # the second time by the plan of the first
        model.zero_grad()
        got = model(data, own)
        pyg_sar.loader.mean_of_batches(got.square()).backward()
        assert_close(got.detach(), want[ends[rank()] : ends[rank() + 1]].detach())
        for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
            assert_close(ours.grad, theirs.grad)
    own[:, :1] = 7  # written to
    got = model(data, own)
    if own.size(1):
        assert_close(got[0].detach(), plain(whole, torch.tensor([[7], [7]]))[0].detach())
