"""Graphs and parts at the edge: every one trains exactly as on one process."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike, cut_of, gradient, parallel, take_step
from few import few
from on_ranks import on_ranks
from ranks import run_as_threads
from small_graphs import assert_all_raise, attempt
from sum_conv import SumConv
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphConv, MessagePassing, SAGEConv

import pyg_sar


def _data(num_nodes: int, edges: list[tuple[int, int]], train: list[int] | None = None) -> Data:
    generator = torch.Generator().manual_seed(num_nodes)
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[list(range(num_nodes)) if train is None else train] = True
    return Data(
        x=torch.randn(num_nodes, 6, generator=generator, dtype=torch.float64),
        edge_index=torch.tensor(edges, dtype=torch.int64).view(-1, 2).t().contiguous(),
        y=torch.arange(num_nodes) % 3,
        train_mask=mask,
    )


THIRDS = [0, 0, 0, 1, 1, 1, 2, 2, 2]
RING = [(i, (i + 1) % 9) for i in range(9)]

CASES: dict[str, tuple[Any, list[int]]] = {
    'isolated node': ((9, [e for e in RING if 4 not in e]), THIRDS),
    'empty block': ((9, [(0, 1), (1, 3), (3, 4), (4, 5), (6, 7)]), THIRDS),
    'part without training node': ((9, RING, [0, 1, 5]), THIRDS),
    'part without edges': ((9, [(6, 0), (7, 1), (0, 1)]), THIRDS),
    'part without nodes': ((9, RING), [0, 0, 0, 0, 2, 2, 2, 2, 2]),
    'repeated edges': ((9, RING + RING[2:5] + RING[3:4]), [0, 1, 2] * 3),
    'self loops': ((9, [*RING, (2, 2), (5, 5), (5, 5)]), THIRDS),
    'directed graph': ((9, [(i, j) for i in range(9) for j in range(i)]), [0, 1, 2] * 3),
    'no edges at all': ((9, []), THIRDS),
    'everything remote': ((6, [(0, 3), (1, 4), (3, 5), (5, 1)]), [0, 0, 0, 1, 2, 1]),
    'one message into a part': ((9, [(6, 0), (7, 0), (1, 3), (4, 6), (5, 7)]), THIRDS),
    'one node per part': ((3, [(0, 1), (1, 2), (2, 0), (0, 0)]), [0, 1, 2]),
}
"""What a graph is made of, and the part of every node."""

CONVS = {
    'SAGE': lambda: SAGEConv(6, 3),
    'GCN': lambda: GCNConv(6, 3),
    'GAT': lambda: GATConv(6, 3, heads=2, concat=False),
    'SAGE median': lambda: SAGEConv(6, 3, aggr='median'),
}


PARTS = [0, 1, 2] * 3


def _ring() -> Data:
    """As many nodes as edges."""
    data = _data(9, RING)
    data.edge_attr = torch.arange(9, dtype=torch.float64)
    return data


_both_ways = functools.partial(_data, 9, [*RING, *((j, i) for i, j in RING)])
_dense = functools.partial(
    _data, 9, [(i, j) for i in range(9) for j in range(9) if (i * j) % 4 == 1 or i == j + 1]
)
_sorted = functools.partial(_data, 9, sorted(RING + RING[::2], key=lambda edge: edge[1]))
"""Masks are drawn by destination, which is the order of these edges."""


GRAPHS = {case: functools.partial(_data, *given) for case, (given, _) in CASES.items()}
"""Of a case; one object each, so that it is cut once."""


def _step(data: Any, wrap: Wrap, name: str) -> list[Any]:
    def loss(out: Any) -> Tensor:
        return (F.cross_entropy(out, data.y, reduction='none') * data.train_mask).sum() / 4

    return take_step(wrap(CONVS[name]().double()), data, loss=loss, grad=gradient)


def _check(case: str, name: str, ranks: tuple[int, ...]) -> None:
    options = {'cut': CASES[case][1], 'ranks': ranks, 'tolerance': 1e-12, 'rtol': 0}
    assert_alike(_step, name, graph=GRAPHS[case], **options)


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('name', few(['SAGE', 'GCN', 'GAT']))
def test_equals_one_process(case: str, name: str) -> None:
    _check(case, name, (3, 1))


def test_a_quantile_of_one_message() -> None:
    """PyG's own takes no single message, nor none for the first node."""
    _check('one message into a part', 'SAGE median', (3,))


class _Spare(SumConv):
    """A conv with a parameter that no message reads."""

    def __init__(self) -> None:
        super().__init__(aggr='sum')
        self.weight = torch.nn.Parameter(torch.ones(6))
        self.spare = torch.nn.Parameter(torch.ones(6))

    def message(self, x_j: Tensor) -> Tensor:
        return (x_j * self.weight).relu()


def _of_spare(data: Any, wrap: Wrap) -> list[Any]:
    """No gradient reaches a parameter, though one rank has no edges and waits for the others."""
    conv = _Spare().double()
    model = parallel(conv, wrap, mode='one_shot')
    model(data.x.requires_grad_(), data.edge_index).sum().backward()
    return [conv.weight.grad, conv.spare.grad]


def _of_edge_features(data: Any, wrap: Wrap) -> list[Any]:
    """Without edges GATConv's message leaves early; a tensor of all ranks gets its gradient."""
    conv = GATConv(6, 3, edge_dim=2, add_self_loops=False).double()
    model = parallel(conv, wrap, mode='one_shot')
    edge_attr = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    out = model(data.x.requires_grad_(), data.edge_index, edge_attr)
    (out.sin().sum() + edge_attr.square().sum()).backward()
    return [gradient(t) for t in (data.x, edge_attr, *conv.parameters())]


class _Early(MessagePassing):  # type: ignore[misc]
    """A factor times x_j; without edges a result that depends on neither."""

    def forward(self, x: Tensor, edge_index: Tensor, w: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x, w=w)

    def message(self, x_j: Tensor, w: Tensor, index: Tensor) -> Tensor:
        if index.numel() == 0:
            return torch.zeros(0, 24, dtype=torch.float64)
        return w.tanh().view(-1, 1) * x_j


def _of_a_factor(data: Any, wrap: Wrap) -> list[Any]:
    model = parallel(_Early(), wrap, mode='one_shot')
    w = torch.arange(3.0, dtype=torch.float64).requires_grad_()
    x = data.x.requires_grad_()
    model(x.repeat(1, 4), data.edge_index, w).sin().sum().backward()
    return [gradient(x), gradient(w)]


@pytest.mark.parametrize('program', [_of_spare, _of_edge_features, _of_a_factor])
def test_messages_on_a_rank_without_edges(program: Any) -> None:
    case = 'part without edges'
    assert_alike(program, graph=GRAPHS[case], cut=CASES[case][1], tolerance=1e-12)


def _with_learned_weights(root: str) -> str:
    data = pyg_sar.load_shard(root)
    weight = torch.ones(9, dtype=torch.float64, requires_grad=True)
    conv = pyg_sar.SARConv(GraphConv(6, 3).double())
    return attempt(conv, data.x, data.edge_index, weight)


def test_a_vector_of_nodes_or_of_edges() -> None:
    """A plain vector that learns, in a graph with as many nodes as edges: nobody knows whose."""
    outcomes = run_as_threads(_with_learned_weights, 3, cut_of(_ring, 3, PARTS))
    assert_all_raise(outcomes, 'ValueError', 'GraphConv', 'may be of')


@as_one_process(graph=_ring, cut=PARTS, tolerance=1e-12)
def test_edges_and_weights_selected_apart(data: Data, wrap: Wrap) -> Tensor:
    """By equal masks, which are other tensors, in a graph with as many nodes as edges."""
    conv = wrap(GraphConv(6, 3).double())
    masks = [data.x.new_ones(9, dtype=torch.bool) for _ in range(4)]
    weight = (data.edge_attr * 2)[masks[0]][masks[1]]
    return conv(data.x, data.edge_index[:, masks[2]][:, masks[3]], weight).detach()


@pytest.mark.parametrize('num_parts', [1, 3])
def test_dropout_inside_messages_is_replayed(num_parts: int) -> None:
    """Backward sees the masks of forward: the gradient is the derivative at a fixed seed."""
    shard = pyg_sar.load_shard(cut_of(_dense, num_parts, 'random'))
    torch.manual_seed(2)
    conv = pyg_sar.SARConv(GATConv(6, 3, heads=2, dropout=0.5).double()).train()
    weight = torch.randn(9, 6, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        torch.manual_seed(5)
        return (conv(x, shard.edge_index) * weight).sum()

    x = shard.x.detach().clone().requires_grad_()
    value(x).backward()
    direction = torch.randn_like(shard.x)
    step = 1e-6 * direction
    with torch.no_grad():
        numeric = (value(shard.x + step) - value(shard.x - step)) / 2e-6
    torch.testing.assert_close((x.grad * direction).sum(), numeric, rtol=1e-6, atol=1e-7)


def test_backward_leaves_the_random_state_alone() -> None:
    shard = pyg_sar.load_shard(cut_of(_ring, 3, PARTS))
    conv = pyg_sar.SARConv(GATConv(6, 3, dropout=0.5).double()).train()
    out = conv(shard.x.detach().clone().requires_grad_(), shard.edge_index)
    before = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


@as_one_process(graph=_sorted, ranks=(1,), parts=1, tolerance=1e-12)
def test_dropout_masks_equal_plain_pyg_on_one_part(data: Any, wrap: Wrap) -> list[Any]:
    conv = wrap(GATConv(6, 3, heads=2, dropout=0.5, add_self_loops=False).double())
    torch.manual_seed(3)
    found = take_step(conv, data)
    assert (found[0] - conv.eval()(data.x, data.edge_index)).abs().max() > 1e-3
    return found


@pytest.mark.parametrize('name', CONVS)
@on_ranks(by='threads')
def test_training_after_inference_mode(data, name):
    """What is computed once and kept must be usable in every mode."""
    conv = pyg_sar.SARConv(CONVS[name]().double())
    with torch.inference_mode():
        inferred = conv(data.x, data.edge_index)
        conv(data.x, data.edge_index[:, ::2])
    out = conv(data.x.detach().clone().requires_grad_(), data.edge_index)
    out.sum().backward()
    conv(data.x, data.edge_index[:, ::2]).sum().backward()
    pair = pyg_sar.local((inferred.clone(), out.detach()))
    torch.testing.assert_close(*pair, rtol=0, atol=1e-12)


class _Centred(MessagePassing):  # type: ignore[misc]
    """A message that reads all nodes, or all rows of a weight."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(aggr='sum')
        self.weight = torch.nn.Parameter(torch.ones(num_rows, 6))

    def forward(self, x: Tensor, edge_index: Tensor, *, of_nodes: bool) -> Tensor:
        all_rows = x if of_nodes else self.weight
        return self.propagate(edge_index, x=x, all_rows=all_rows)

    def message(self, x_j: Tensor, all_rows: Tensor) -> Tensor:
        return x_j - all_rows.mean(dim=0)


@pytest.mark.parametrize('cut', [THIRDS, [0, 0, 0, 0, 0, 1, 1, 2, 2]])
@as_one_process(graph=_both_ways, tolerance=1e-12)
def test_a_message_that_reads_all_nodes(data: Any, wrap: Wrap, cut: list[int]) -> list[Tensor]:
    """Also where all ranks have as many nodes; a weight is no such thing."""
    conv = wrap(_Centred(3).double())
    return [conv(data.x, data.edge_index, of_nodes=each).detach() for each in (True, False)]
