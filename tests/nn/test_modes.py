"""Mode auto chooses by what fits, prefetch travels ahead, and exchange and compute overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from message_convs import MESSAGES
from on_ranks import on_ranks
from small_graphs import assert_close, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import (
    GCNConv,
    GINEConv,
    MessagePassing,
    SAGEConv,
)
from traffic import Traffic, counted

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv
from pyg_sar.comm.collectives import agree

TOLERANCE = 1e-10


KINDS: dict[str, Callable[[int, int], MessagePassing]] = {
    'linear': SAGEConv,
    'replay': lambda a, b: GINEConv(torch.nn.Linear(a, b), edge_dim=4),
}


def _auto(data: Data, kind: str, budget: int) -> list[tuple[Any, Traffic, Traffic]]:
    """The choice of a layer of 4 columns and of one of 32, and what travels."""
    edges = [data.edge_attr] if kind == 'replay' else []
    found = []
    for width in (4, 32):
        conv = SARConv(KINDS[kind](width, 3).double(), mode='auto', memory_budget=budget)
        h = torch.randn(len(data.x), width, dtype=torch.float64, requires_grad=True)
        conv(h, data.edge_index, *edges)
        with counted() as forward:
            out = conv(h, data.edge_index, *edges)
        with counted() as backward:
            out.sum().backward()
        (choice,) = conv.chosen_modes()
        found.append((choice, forward, backward))
    return found


@pytest.mark.parametrize('kind', KINDS)
@on_ranks()
def test_auto_with_a_budget_in_between(data, kind):
    """The narrow layer one_shot, the wide one sequential, each with the messages of its mode."""
    again = {'linear': 0, 'replay': 2}[kind]  # replay receives the rows once more
    first, second = (choice.one_shot_bytes for choice, *_ in _auto(data, kind, 1 << 40))
    assert first < second
    narrow, wide = _auto(data, kind, (first + second) // 2)
    assert [narrow[0].mode, wide[0].mode] == ['one_shot', 'sequential']
    travels = [[(t.all_to_alls, t.point_to_point) for t in each[1:]] for each in (narrow, wide)]
    assert travels == [[(1, 0), (1, 0)], [(0, 2), (0, 2 + again)]]


@on_ranks()
def test_the_largest_estimate_of_all_ranks_counts(data):
    """Ranks that could hold all rows follow the one that could not."""
    shard = data.edge_index.handle.shard
    num_rows = shard.num_halo + sum(step.send_index.numel() for step in shard.steps)
    by_hand = agree(num_rows * 6 * 8)
    assert len(set(by_hand)) > 1
    for budget, expected in [(max(by_hand), 'one_shot'), (max(by_hand) - 1, 'sequential')]:
        conv = SARConv(SAGEConv(6, 4).double(), mode='auto', memory_budget=budget)
        conv(data.x, data.edge_index)
        assert conv.chosen_modes() == [('SAGEConv.message', expected, max(by_hand))]


class _Tanh(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.tanh()


@on_ranks(1, 2)
def test_the_estimate_by_hand(data):
    """Without gradients an edge of tanh(x_j) takes x_j and its tanh."""
    conv = SARConv(_Tanh(), mode='auto', memory_budget=1)
    with torch.no_grad():
        conv(data.x, data.edge_index)
    ((_, mode, num_bytes),) = conv.chosen_modes()
    assert mode == 'sequential'
    rows, edges = 40 * 6 * 8, data.num_edges * 2 * 6 * 8
    assert rows + edges <= num_bytes <= rows + 2.2 * edges


def _step(name: str, data: Data, budget: int | None) -> tuple[list[Tensor], list[Any]]:
    """Output and gradients of x and of parameters, and the modes; of plain PyG without a budget."""
    torch.manual_seed(5)
    conv: Any = MESSAGES[name]().double()
    if budget is not None:
        conv = SARConv(conv, mode='auto', memory_budget=budget)
    edges = [data.edge_attr] if name in ('GINE', 'NN') else []
    x = data.x.clone().requires_grad_()
    out = conv(x, data.edge_index, *edges)
    factors = torch.linspace(-1, 1, 40, dtype=torch.float64)[getattr(data, 'n_id', slice(None))]
    (out * factors[:, None]).sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in conv.parameters())]
    return found, [] if budget is None else conv.chosen_modes()


@pytest.mark.parametrize(
    ('name', 'budget', 'modes'),
    [
        *((name, 1, {'sequential'}) for name in ('GAT', 'GINE', 'NN', 'SAGE-median')),
        *((name, 1 << 40, {'one_shot'}) for name in ('GAT', 'GINE', 'NN', 'SAGE-median')),
        ('GAT', None, {'sequential', 'one_shot'}),  # logits one way, messages the other
    ],
)
@on_ranks()
def test_auto_on_other_paths(data, name, budget, modes):
    if budget is None:
        _, choices = _step(name, data, 1)
        sizes = sorted(choice.one_shot_bytes for choice in choices)
        budget = (sizes[0] + sizes[-1]) // 2
    found, choices = _step(name, data, budget)
    expected, _ = _step(name, small_graph(), None)
    for own, want in zip(found, expected, strict=True):
        assert_close(pyg_sar.gather(own), want, tolerance=TOLERANCE)
    assert {choice.mode for choice in choices} == modes


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({'mode': 'auto'}, 'memory_budget.*None'),
    ({'memory_budget': 5}, 'memory_budget.*auto.* 5 in .*seq'),
    ({'mode': 'one_shot', 'memory_budget': 5}, 'memory_budget.*auto'),
    *(({'mode': 'auto', 'memory_budget': n}, f'memory_budget.*int.*{n}') for n in (0, 1e9, True)),
    ({'mode': 'one_shot', 'max_rows': 9}, 'max_rows.*one_shot.*9'),
    ({'exchange_dtype': torch.float32}, 'exchange_dtype.*bfloat16.*float32'),
    ({'exchange_dtype': torch.int8}, 'exchange_dtype.*float16.*int8'),
    ({'exchange_dtype': 'bfloat16'}, "exchange_dtype.*'bfloat16'"),
]


@pytest.mark.parametrize(('options', 'words'), OPTIONS, ids=str)
def test_options_without_a_meaning(options, words):
    for make in (
        lambda: SARConv(GCNConv(6, 6), **options),
        lambda: DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        lambda: DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_models_pass_options_on():
    options = {'mode': 'auto', 'memory_budget': 9, 'prefetch': 3, 'max_rows': 7}
    options |= {'exchange_dtype': torch.bfloat16, 'partial_sums': False}
    for model in (
        DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        DistributedDataParallel(
            torch.nn.ModuleList([GCNConv(6, 6)]), return_memory=False, **options
        ).module,
    ):
        assert vars(model[0].sar_options) == options
        assert model[0].chosen_modes() == []


@on_ranks(2)
def test_ranks_with_other_budgets(data):
    conv = SARConv(SAGEConv(6, 4).double(), mode='auto', memory_budget=1 + dist.get_rank())
    with pytest.raises(ValueError, match='memory_budget'):
        conv(data.x, data.edge_index)
