"""Mode auto chooses by what fits, prefetch travels ahead, and exchange and compute overlap."""

from __future__ import annotations

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


class TwoLayers(torch.nn.Module):
    """The rows that travel for the second layer are eight times as wide."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.lin_in = torch.nn.Linear(6, 4)
        if kind == 'linear':
            convs: list[torch.nn.Module] = [SAGEConv(4, 32), SAGEConv(32, 3, aggr='sum')]
        else:
            convs = [GINEConv(torch.nn.Linear(4, 32), edge_dim=4)]
            convs.append(GINEConv(torch.nn.Linear(32, 3), edge_dim=4))
        self.convs = torch.nn.ModuleList(convs)
        self.takes_edges = kind == 'replay'

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        edges = [edge_attr] if self.takes_edges else []
        x = self.lin_in(x)
        x = self.convs[0](x, edge_index, *edges).tanh()
        out: Tensor = self.convs[1](x, edge_index, *edges)
        return out


def _model(kind: str) -> TwoLayers:
    torch.manual_seed(7)
    return TwoLayers(kind).double()


def _grad_out(num_nodes: int) -> Tensor:
    return torch.randn(
        num_nodes, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )


def _expected(kind: str) -> dict[str, Tensor]:
    """Output and all gradients of one-process PyG."""
    data, model = small_graph(), _model(kind)
    x, edge_attr = data.x.requires_grad_(), data.edge_attr.requires_grad_(kind == 'replay')
    out = model(x, data.edge_index, edge_attr)
    out.backward(_grad_out(data.num_nodes))
    found = {'out': out.detach(), 'x': x.grad}
    if kind == 'replay':
        found['edge_attr'] = edge_attr.grad
    return found | {name: p.grad for name, p in model.named_parameters()}


def _auto(
    root: str, kind: str, budget: int | None
) -> tuple[dict[str, float], list[list[Any]], list[tuple[Traffic, Traffic]]]:
    """Differences from one process, modes of the layers, and their traffic when run again.

    Without a budget it is the mean of what the two layers would hold.
    """
    if budget is None:
        (_, sizes, _) = _auto(root, kind, 1 << 40)
        first, second = ([c.one_shot_bytes for c in choices] for choices in sizes)
        assert max(first) < min(second)
        budget = (max(first) + min(second)) // 2
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = wrap(_model(kind), mode='auto', memory_budget=budget)
    x, edge_attr = data.x.clone().requires_grad_(), data.edge_attr.clone()
    edge_attr.requires_grad_(kind == 'replay')
    out = model(x, data.edge_index, edge_attr)
    out.backward(_grad_out(40)[data.n_id])
    want = _expected(kind)
    found = {'out': (out, want['out'][data.n_id]), 'x': (x.grad, want['x'][data.n_id])}
    if kind == 'replay':
        found['edge_attr'] = edge_attr.grad, want['edge_attr'][data.e_id]
    for name, parameter in _model(kind).named_parameters():
        total = dict(model.named_parameters())[name].grad.clone()
        dist.all_reduce(total)
        found[name] = total, parameter.data.new_tensor(want[name].tolist())
    differences = {
        name: (a - b).abs().max().item() if a.numel() else 0.0 for name, (a, b) in found.items()
    }
    edges = [edge_attr] if kind == 'replay' else []
    traffic = []
    for conv, width in zip(model.convs, (4, 32), strict=True):
        h = torch.randn(x.size(0), width, dtype=torch.float64, requires_grad=True)
        with counted() as forward:
            out = conv(h, data.edge_index, *edges)
        with counted() as backward:
            out.sum().backward()
        traffic.append((forward, backward))
    return differences, [conv.chosen_modes() for conv in model.convs], traffic


@pytest.mark.parametrize('world_size', [2, 3])
@pytest.mark.parametrize('kind', ['linear', 'replay'])
def test_auto_with_a_budget_in_between(tmp_path, kind, world_size):
    """Layer 1 one_shot, layer 2 sequential; exact, and each with the messages of its mode."""
    root = str(cut(small_graph(), world_size, tmp_path / 'parts'))
    results = run_ranks(_auto, world_size, root, kind, None)
    for differences, choices, traffic in results:
        assert max(differences.values()) <= TOLERANCE, differences
        assert [[c.mode for c in of_layer] for of_layer in choices] == [
            ['one_shot'],
            ['sequential'],
        ]
        for forward, backward in traffic[:1]:
            assert (forward.all_to_alls, forward.point_to_point) == (1, 0)
            assert (backward.all_to_alls, backward.point_to_point) == (1, 0)
        for forward, backward in traffic[1:]:
            num_steps = world_size - 1
            exchanges = {'linear': 1, 'replay': 2}[kind]  # replay receives the rows once more
            assert (forward.all_to_alls, forward.point_to_point) == (0, num_steps)
            assert (backward.all_to_alls, backward.point_to_point) == (0, exchanges * num_steps)
    assert len({str(choices) for _, choices, _ in results}) == 1  # the same on all ranks


@pytest.mark.parametrize(('budget', 'mode'), [(1, 'sequential'), (1 << 40, 'one_shot')])
@pytest.mark.parametrize('kind', ['linear', 'replay'])
def test_auto_with_a_budget_for_nothing_or_everything(tmp_path, kind, budget, mode):
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    for differences, choices, _ in run_ranks(_auto, 3, root, kind, budget):
        assert max(differences.values()) <= TOLERANCE, differences
        assert {c.mode for of_layer in choices for c in of_layer} == {mode}


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


def _estimates(root: str, name: str) -> tuple[list[Any], list[Any]]:
    """With and without gradients."""
    data = pyg_sar.local(pyg_sar.load_shard(root))
    edges = [data.edge_attr] if name in ('GINE', 'NN') else []
    x = data.x.clone().requires_grad_()
    found = []
    for mode in (torch.enable_grad, torch.no_grad):
        conv = SARConv(MESSAGES[name]().double(), mode='auto', memory_budget=1)
        before = {key: value.clone() for key, value in conv.state_dict().items()}
        state = torch.get_rng_state()
        with mode():
            conv(x, data.edge_index, *edges)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, before[key]) for key, value in conv.state_dict().items())
        assert all(p.grad is None for p in conv.parameters())
        found.append(conv.chosen_modes())
    return found[0], found[1]


@pytest.mark.parametrize('name', [name for name in MESSAGES if name != 'GAT'])
def test_estimates_count_what_an_edge_takes(tmp_path, name):
    """At least the rows it gathers and its messages; more where backward keeps copies."""
    root = str(cut(small_graph(), 2, tmp_path / 'parts'))
    num_edges = [load.num_edges for load in run_ranks(_shard_sizes, 2, root)]
    at_least = {
        'GINE': 12,
        'EdgeConv': 62,
        'NN': 24,
        'SAGE-median': 6,
        'SAGE-lstm': 6,
        'Transformer': 8,
    }
    for with_grad, without in run_ranks(_estimates, 2, root, name):
        assert [c.function for c in with_grad] == [c.function for c in without]
        for more, less in zip(with_grad, without, strict=True):
            assert more.mode == less.mode == 'sequential'
            assert more.one_shot_bytes >= less.one_shot_bytes
            assert less.one_shot_bytes > max(num_edges) * at_least[name] * 8


class _Sizes:
    def __init__(self, num_edges: int) -> None:
        self.num_edges = num_edges


def _shard_sizes(root: str) -> _Sizes:
    return _Sizes(pyg_sar.local(pyg_sar.load_shard(root)).num_edges)


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
        *((name, 'none', {'sequential'}) for name in ('GAT', 'NN', 'SAGE-median')),
        *((name, 'all', {'one_shot'}) for name in ('GAT', 'NN', 'SAGE-median')),
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
