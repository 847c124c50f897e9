"""Mode auto chooses by what fits, prefetch travels ahead, and exchange and compute overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from message_convs import MESSAGES
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch import Tensor
from torch_geometric.nn import (
    GCNConv,
    GINEConv,
    MessagePassing,
    SAGEConv,
)
from traffic import Traffic, counted

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv, wrap

TOLERANCE = 1e-10


def _grad_out(num_nodes: int) -> Tensor:
    return torch.randn(
        num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


KINDS: dict[str, Callable[[int, int], MessagePassing]] = {
    'linear': SAGEConv,
    'replay': lambda a, b: GINEConv(torch.nn.Linear(a, b), edge_dim=4),
}


def _auto(root: str, kind: str, budget: int | None) -> list[tuple[Any, Traffic, Traffic]]:
    """The choice of a layer of 4 columns and of one of 32, and what travels.

    Without a budget it is the mean of what the two would hold.
    """
    if budget is None:
        first, second = (choice.one_shot_bytes for choice, *_ in _auto(root, kind, 1 << 40))
        assert first < second
        budget = (first + second) // 2
    data = pyg_sar.local(pyg_sar.load_shard(root))
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


@pytest.mark.parametrize('world_size', [2, 3])
@pytest.mark.parametrize('kind', KINDS)
def test_auto_with_a_budget_in_between(tmp_path, kind, world_size):
    """The narrow layer one_shot, the wide one sequential, each with the messages of its mode."""
    root = str(cut(small_graph(), world_size, tmp_path / 'parts'))
    num_steps = world_size - 1
    again = {'linear': 0, 'replay': num_steps}[kind]  # replay receives the rows once more
    results = run_ranks(_auto, world_size, root, kind, None)
    for (narrow, *of_narrow), (wide, forward, backward) in results:
        assert (narrow.mode, wide.mode) == ('one_shot', 'sequential')
        for traffic in of_narrow:
            assert (traffic.all_to_alls, traffic.point_to_point) == (1, 0)
        assert (forward.all_to_alls, forward.point_to_point) == (0, num_steps)
        assert (backward.all_to_alls, backward.point_to_point) == (0, num_steps + again)


def _linear_choice(root: str, budget: int) -> tuple[int, str, int]:
    """What this rank would hold by hand, the mode chosen, and the estimate that counted."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    shard = data.edge_index.shard
    conv = SARConv(SAGEConv(6, 4).double(), mode='auto', memory_budget=budget)
    conv(data.x, data.edge_index)
    num_rows = shard.num_halo + sum(step.send_index.numel() for step in shard.steps)
    ((function, mode, num_bytes),) = conv.chosen_modes()
    assert function == 'SAGEConv.message'
    return num_rows * 6 * 8, mode, num_bytes


def test_the_largest_estimate_of_all_ranks_counts(tmp_path):
    """Ranks that could hold all rows follow the one that could not."""
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    by_hand = [own for own, _, _ in run_ranks(_linear_choice, 3, root, 1)]
    assert len(set(by_hand)) > 1
    for budget, mode in [(max(by_hand), 'one_shot'), (max(by_hand) - 1, 'sequential')]:
        for _, chosen, num_bytes in run_ranks(_linear_choice, 3, root, budget):
            assert chosen == mode
            assert num_bytes == max(by_hand)


class _Tanh(MessagePassing):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_j: Tensor) -> Tensor:
        return x_j.tanh()


def test_the_estimate_by_hand(tmp_path):
    """Without gradients an edge of tanh(x_j) takes x_j and its tanh."""
    data = pyg_sar.local(pyg_sar.load_shard(cut(small_graph(), 2, tmp_path / 'parts')))
    conv = SARConv(_Tanh(), mode='auto', memory_budget=1)
    with torch.no_grad():
        conv(data.x, data.edge_index)
    ((_, mode, num_bytes),) = conv.chosen_modes()
    assert mode == 'sequential'
    rows, edges = 40 * 6 * 8, data.num_edges * 2 * 6 * 8
    assert rows + edges <= num_bytes <= rows + 2.2 * edges


def _single(
    name: str, data: Any, options: dict[str, Any] | None
) -> tuple[list[Tensor], MessagePassing]:
    """Output and gradients of one conv: rows of x first, then of parameters."""
    torch.manual_seed(5)
    conv = MESSAGES[name]().double()
    layer = conv if options is None else SARConv(conv, **options)
    edges = [data.edge_attr] if name in ('GINE', 'NN') else []
    x = data.x.clone().requires_grad_()
    out = layer(x, data.edge_index, *edges)
    out.backward(_grad_out(40)[:, :1][getattr(data, 'n_id', slice(None))].expand_as(out))
    return [out.detach(), x.grad, *(p.grad for p in conv.parameters())], layer


def _single_on_ranks(root: str, name: str, budget: str) -> tuple[list[float], list[str]]:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    num_bytes = {'none': 1, 'all': 1 << 40}.get(budget, 0)
    if budget == 'between':
        _, layer = _single(name, data, {'mode': 'auto', 'memory_budget': 1})
        sizes = sorted(c.one_shot_bytes for c in layer.chosen_modes())
        num_bytes = (sizes[0] + sizes[-1]) // 2
    found, layer = _single(name, data, {'mode': 'auto', 'memory_budget': num_bytes})
    expected, _ = _single(name, small_graph(), None)
    for gradient in found[2:]:
        dist.all_reduce(gradient)
    expected[:2] = [t[data.n_id] for t in expected[:2]]
    errors = [(a - b).abs().max().item() for a, b in zip(found, expected, strict=True)]
    return errors, [c.mode for c in layer.chosen_modes()]


@pytest.mark.parametrize(
    ('name', 'budget', 'modes'),
    [
        *((name, 'none', {'sequential'}) for name in ('GAT', 'GINE', 'NN', 'SAGE-median')),
        *((name, 'all', {'one_shot'}) for name in ('GAT', 'GINE', 'NN', 'SAGE-median')),
        ('GAT', 'between', {'sequential', 'one_shot'}),  # logits one way, messages the other
    ],
)
def test_auto_on_other_paths(tmp_path, name, budget, modes):
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    for errors, chosen in run_ranks(_single_on_ranks, 3, root, name, budget):
        assert max(errors) <= TOLERANCE
        assert set(chosen) == modes


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({'mode': 'auto'}, "mode 'auto' needs a 'memory_budget' in bytes .got None."),
    ({'memory_budget': 5}, "'memory_budget' has a meaning in mode 'auto' only .got 5 in mode 'seq"),
    ({'mode': 'one_shot', 'memory_budget': 5}, "'memory_budget' has a meaning in mode 'auto' only"),
    ({'mode': 'auto', 'memory_budget': 0}, "'memory_budget' must be a positive int or None .got 0"),
    ({'mode': 'auto', 'memory_budget': 1e9}, "'memory_budget' must be a positive int or None"),
    ({'mode': 'auto', 'memory_budget': True}, "'memory_budget' must be a positive int or None"),
    ({'mode': 'one_shot', 'max_rows': 9}, "'max_rows' has no meaning in mode 'one_shot' .got 9"),
    ({'exchange_dtype': torch.float32}, "'exchange_dtype' must be None or one of .*bfloat16"),
    ({'exchange_dtype': torch.int8}, "'exchange_dtype' must be None or one of .*float16"),
    ({'exchange_dtype': 'bfloat16'}, "'exchange_dtype' must be None or one of .*got 'bfloat16'"),
]


@pytest.mark.parametrize(('options', 'words'), OPTIONS, ids=str)
def test_options_without_a_meaning(options, words):
    for make in (
        lambda: SARConv(GCNConv(6, 6), **options),
        lambda: wrap(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        lambda: DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_models_pass_options_on():
    options = {'mode': 'auto', 'memory_budget': 9, 'prefetch': 3, 'max_rows': 7}
    options |= {'exchange_dtype': torch.bfloat16, 'partial_sums': False}
    for model in (
        wrap(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        DistributedDataParallel(
            torch.nn.ModuleList([GCNConv(6, 6)]), return_memory=False, **options
        ).module,
    ):
        assert vars(model[0].sar_options) == options
        assert model[0].chosen_modes() == []


def _budget_of_rank(root: str) -> str:
    data = pyg_sar.local(pyg_sar.load_shard(root))
    conv = SARConv(SAGEConv(6, 4).double(), mode='auto', memory_budget=1 + dist.get_rank())
    return attempt(conv, data.x, data.edge_index)


def test_ranks_with_other_budgets(tmp_path):
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    outcomes = run_ranks(_budget_of_rank, 2, root)
    assert_all_raise(outcomes, 'ValueError', 'expected the same layer', 'memory_budget')
