"""Messages that keep something of all edges on their conv: it is that of the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import awkward_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.nn import MessagePassing

import pyg_sar


class Gated(MessagePassing):
    """A gate for every edge, of which `keep` keeps something."""

    def __init__(self, keep: Callable[[Any, Tensor], None]) -> None:
        super().__init__(aggr='add')
        self.keep = keep
        self.gate = torch.nn.Linear(8, 1)
        self.mean: Any = 0.0
        self.sums: list[Tensor] = []
        self.by_name: dict[str, Tensor] = {}
        self.register_buffer('count', torch.zeros(()))
        self.running: Tensor
        self.register_buffer('running', torch.zeros(8))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Sums of gated neighbours."""
        out: Tensor = self.propagate(edge_index, x=x)
        return out

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        """A gated neighbour."""
        gate = self.gate(x_i - x_j).sigmoid()
        self.keep(self, gate)
        return gate * x_j


def _mean(conv: Any, gate: Tensor) -> None:
    conv.mean = gate.mean()


def _new(conv: Any, gate: Tensor) -> None:
    conv.new = gate.square().mean()


def _sums(conv: Any, gate: Tensor) -> None:
    conv.sums.append(gate.sum())


def _by_name(conv: Any, gate: Tensor) -> None:
    conv.by_name['mean'] = gate.mean()


def _count(conv: Any, gate: Tensor) -> None:
    conv.count += gate.size(0)


def _running(conv: Any, gate: Tensor) -> None:
    conv.running.mul_(0.9).add_(gate.detach().mean())


def _nothing(conv: Any, gate: Tensor) -> None:
    pass


KEEPS = [_mean, _new, _sums, _by_name, _count, _running]


def _losses(data: Any, keep: Any, hooked: list[Tensor] | None = None) -> list[Tensor]:
    torch.manual_seed(0)
    conv: Any = Gated(keep).double()
    model: Any = conv
    if type(data.x) is not Tensor:
        model = pyg_sar.DistributedDataParallel(conv)
    if hooked is not None:
        conv.gate.register_forward_hook(lambda module, args, out: hooked.append(out.sum()))
    optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        conv.sums.clear()
        del (hooked if hooked is not None else [])[:]
        out = model(data.x, data.edge_index)
        kept = [conv.mean, getattr(conv, 'new', 0), *conv.sums, *conv.by_name.values()]
        loss = F.mse_loss(out, data.x) + 0.1 * sum([*kept, *(hooked or [])])
        loss.backward()
        optimizer.step()
        found += [loss.detach(), *(p.grad for p in conv.parameters()), conv.count, conv.running]
    return [each.clone() for each in found]


def _on_ranks(root: str, keep: Any, is_hooked: bool) -> list[Tensor]:
    return _losses(pyg_sar.load_shard(root), keep, [] if is_hooked else None)


@pytest.mark.parametrize('keep', [*KEEPS, None])
def test_kept_of_all_edges(tmp_path: Path, keep: Any) -> None:
    data = awkward_graph()
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(data, 3, root, method=torch.arange(data.num_nodes) % 3)
    want = _losses(data, keep or _nothing, None if keep else [])
    for got in run_ranks(_on_ranks, 3, str(root), keep or _nothing, keep is None):
        torch.testing.assert_close(got, want)
