"""Mode sequential_no_remat: forward keeps messages for one backward, which computes none again.

Of messages with a softmax it keeps the rows received.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
import torch
from alike import as_one_process, cut_of, itself
from small_graphs import small_graph
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

import pyg_sar
from pyg_sar.ops import chunks

MODE = {'mode': 'sequential_no_remat'}


class Erf(MessagePassing):
    """Nothing else in a training computes an erf."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.lin(torch.erf(x_j - x_i))


class Weighted(Erf):
    """With scores so far apart that the maxima of the softmax grow from block to block."""

    def message(  # type: ignore[override]
        self, x_i: Tensor, x_j: Tensor, index: Tensor, ptr: Tensor | None, size_i: int | None
    ) -> Tensor:
        rows = torch.erf(x_j - x_i)
        return self.lin(rows) * softmax(40 * rows.sum(-1, keepdim=True), index, ptr, size_i)


CONVS = {'Erf': Erf, 'Weighted': Weighted}


def _make(name: str) -> Erf:
    torch.manual_seed(0)
    return CONVS[name]().double()


def lonely_part() -> Data:
    """No edge ends in the second of three parts."""
    data = small_graph()
    return data.edge_subgraph(data.edge_index[1] % 3 != 1)


@pytest.mark.parametrize('name', CONVS)
@pytest.mark.parametrize('num_backwards', [1, 2])
@as_one_process(graph=lonely_part, cut=[i % 3 for i in range(40)], ranks=(1, 3))
def test_backward_and_one_more(data: Any, wrap: Any, name: str, num_backwards: int) -> Any:
    """The second one computes messages again, on all ranks."""
    conv = _make(name) if wrap is itself else wrap(_make(name), **MODE)
    x = data.x.detach().requires_grad_()
    out = conv(x, data.edge_index)
    for number in range(num_backwards):
        out.square().sum().backward(retain_graph=number + 1 < num_backwards)
    return [out, x.grad, *(p.grad for p in conv.parameters())]


@pytest.mark.parametrize(
    ('name', 'options', 'again'), [('Erf', MODE, 0), ('Erf', {}, 1), ('Weighted', MODE, 1)]
)
def test_how_often(name: str, options: dict[str, str], again: int) -> None:
    """Forward and backward compute the messages of one block."""
    data = pyg_sar.load_shard(cut_of(small_graph, 2, 'random'))
    conv, x = pyg_sar.SARConv(_make(name), **options), data.x.detach().requires_grad_()
    conv(x, data.edge_index)  # which is read
    with profile(activities=[ProfilerActivity.CPU]) as forward:
        out = conv(x, data.edge_index)
    with profile(activities=[ProfilerActivity.CPU]) as backward:
        out.sum().backward()
    names = [[event.name for event in run.events()] for run in (forward, backward)]
    assert [of_run.count('aten::erf') for of_run in names] == [1, again]


def test_what_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing after backward, though the loss lives, without gradients, and with hooks."""
    kept: WeakSet[chunks.Computed] = WeakSet()
    of = chunks.Computed.of

    def noted(*args: Any) -> chunks.Computed:
        computed = of(*args)
        kept.add(computed)
        return computed

    monkeypatch.setattr(chunks.Computed, 'of', noted)
    data = pyg_sar.load_shard(cut_of(small_graph, 2, 'random'))
    conv, x = pyg_sar.SARConv(_make('Erf'), **MODE), data.x.detach().requires_grad_()
    loss = conv(x, data.edge_index).sum()
    (computed,) = kept
    assert len(computed.messages[0]) == data.num_edges
    del computed
    loss.backward()
    assert not kept
    with torch.no_grad():
        out = conv(x, data.edge_index)
    assert not kept
    assert not out.requires_grad
    with torch.autograd.graph.save_on_cpu():
        out = conv(x, data.edge_index)
    assert not kept
    assert out.requires_grad
