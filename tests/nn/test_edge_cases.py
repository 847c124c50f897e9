"""Graphs and parts at the edge: every one trains exactly as on one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_ranks
from small_graphs import assert_all_raise, assert_close
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


RING = [(i, (i + 1) % 9) for i in range(9)]

# Graph, part of every node.
CASES: dict[str, tuple[Data, list[int]]] = {
    'isolated node': (_data(9, [e for e in RING if 4 not in e]), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    'empty block': (
        _data(9, [(0, 1), (1, 3), (3, 4), (4, 5), (6, 7)]),
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
    ),
    'part without training node': (_data(9, RING, train=[0, 1, 5]), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    'part without edges': (_data(9, [(6, 0), (7, 1), (0, 1)]), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    'part without nodes': (_data(9, RING), [0, 0, 0, 0, 2, 2, 2, 2, 2]),
    'repeated edges': (_data(9, RING + RING[2:5] + RING[3:4]), [0, 1, 2] * 3),
    'self loops': (_data(9, [*RING, (2, 2), (5, 5), (5, 5)]), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    'directed graph': (_data(9, [(i, j) for i in range(9) for j in range(i)]), [0, 1, 2] * 3),
    'no edges at all': (_data(9, []), [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    'everything remote': (_data(6, [(0, 3), (1, 4), (3, 5), (5, 1)]), [0, 0, 0, 1, 2, 1]),
    'one message into a part': (
        _data(9, [(6, 0), (7, 0), (1, 3), (4, 6), (5, 7)]),
        [0, 0, 0, 1, 1, 1, 2, 2, 2],
    ),
    'one node per part': (_data(3, [(0, 1), (1, 2), (2, 0), (0, 0)]), [0, 1, 2]),
}

CONVS = {
    'SAGE': lambda: SAGEConv(6, 3),
    'GCN': lambda: GCNConv(6, 3),
    'GAT': lambda: GATConv(6, 3, heads=2, concat=False),
    'SAGE median': lambda: SAGEConv(6, 3, aggr='median'),
}


def _loss_and_gradients(name: str, data: Data, shard: Data | None) -> dict[str, Tensor]:
    torch.manual_seed(1)
    conv = CONVS[name]().double()
    own = data if shard is None else shard
    x = own.x.detach().clone().requires_grad_()
    model = conv if shard is None else pyg_sar.DistributedDataParallel(conv)
    values = F.cross_entropy(model(x, own.edge_index), own.y, reduction='none')
    loss = (values * own.train_mask).sum() / 4
    loss.backward()
    found = {'loss': loss.detach(), 'x': x.grad}
    for key, parameter in conv.named_parameters():
        found[key] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return found


def _rank(name: str, case: str, root: str) -> dict[str, Tensor]:
    found = _loss_and_gradients(name, CASES[case][0], pyg_sar.load_shard(root))
    return {key: pyg_sar.gather(value) for key, value in found.items()}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('name', few(['SAGE', 'GCN', 'GAT']))
@pytest.mark.parametrize('world_size', few([3, 1]))
def test_equals_one_process(tmp_path: Path, case: str, name: str, world_size: int) -> None:
    _check(tmp_path, case, name, world_size)


def test_a_quantile_of_one_message(tmp_path: Path) -> None:
    """PyG's own takes no single message, nor none for the first node."""
    _check(tmp_path, 'one message into a part', 'SAGE median', 3)


def _check(tmp_path: Path, case: str, name: str, world_size: int) -> None:
    data, parts = CASES[case]
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor(parts))
    expected = _loss_and_gradients(name, data, None)
    root = str(tmp_path / 'parts')
    if world_size == 1:
        results = [_rank(name, case, root)]
    else:
        results = run_ranks(_rank, world_size, name, case, root)
    for found in results:
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-12, msg=key)


class _Spare(MessagePassing):  # type: ignore[misc]
    """A conv with a parameter that no message reads."""

    def __init__(self) -> None:
        super().__init__(aggr='sum')
        self.weight = torch.nn.Parameter(torch.ones(6))
        self.spare = torch.nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.propagate(edge_index, x=x)
        return out

    def message(self, x_j: Tensor) -> Tensor:
        return (x_j * self.weight).relu()


def _gradients_of_spare(root: str) -> list[Tensor | None]:
    data = pyg_sar.load_shard(root)
    conv = _Spare().double()
    model = pyg_sar.DistributedDataParallel(conv, mode='one_shot')
    model(data.x.requires_grad_(), data.edge_index).sum().backward()
    return [conv.weight.grad, conv.spare.grad]


def test_a_parameter_that_no_rank_uses(tmp_path: Path) -> None:
    """It gets no gradient, though one rank has no edges and waits for the others."""
    data, parts = CASES['part without edges']
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor(parts))
    conv = _Spare().double()
    conv(data.x, data.edge_index).sum().backward()
    for weight, spare in run_ranks(_gradients_of_spare, 3, str(tmp_path / 'parts')):
        assert_close(weight, conv.weight.grad)
        assert spare is None


def _gradients_of_features(root: str | None) -> list[Tensor]:
    torch.manual_seed(1)
    data = CASES['part without edges'][0] if root is None else pyg_sar.load_shard(root)
    conv: torch.nn.Module = GATConv(6, 3, edge_dim=2, add_self_loops=False).double()
    if root is not None:
        conv = pyg_sar.SARConv(conv, mode='one_shot')
    edge_attr = torch.arange(6.0, dtype=torch.float64).view(3, 2).requires_grad_()
    out = conv(data.x.requires_grad_(), data.edge_index, edge_attr)
    (out.sin().sum() + edge_attr.square().sum()).backward()
    return [pyg_sar.gather(t.grad) for t in (data.x, edge_attr, *conv.parameters())]


def test_a_message_that_leaves_early(tmp_path: Path) -> None:
    """GATConv's does where there are no edges; a tensor that all ranks have gets its gradient."""
    data, parts = CASES['part without edges']
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor(parts))
    want = _gradients_of_features(None)
    for found in run_ranks(_gradients_of_features, 3, str(tmp_path / 'parts')):
        for ours, theirs in zip(found, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def _with_learned_weights(root: str) -> str:
    data = pyg_sar.load_shard(root)
    weight = torch.ones(9, dtype=torch.float64, requires_grad=True)
    try:
        pyg_sar.SARConv(GraphConv(6, 3).double())(data.x, data.edge_index, weight)
    except ValueError as error:
        return f'ValueError: {error}'
    return 'no error'


def test_a_vector_of_nodes_or_of_edges(tmp_path: Path) -> None:
    """A plain vector that learns, in a graph with as many nodes as edges: nobody knows whose."""
    data = _data(9, RING)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor([0, 1, 2] * 3))
    outcomes = run_ranks(_with_learned_weights, 3, str(tmp_path / 'parts'))
    assert_all_raise(outcomes, 'ValueError', 'GraphConv', 'may be of')


def _selected_twice(data: Data) -> Tensor:
    """Edges and their weights by equal masks, which are other tensors."""
    torch.manual_seed(0)
    conv = pyg_sar.SARConv(GraphConv(6, 3).double())
    masks = [data.x.new_ones(9, dtype=torch.bool) for _ in range(4)]
    weight = (data.edge_attr * 2)[masks[0]][masks[1]]
    return conv(data.x, data.edge_index[:, masks[2]][:, masks[3]], weight).detach()


def _selected_twice_on_rank(root: str) -> Tensor:
    return pyg_sar.gather(_selected_twice(pyg_sar.load_shard(root)))


def test_edges_and_weights_selected_apart(tmp_path: Path) -> None:
    """In a graph with as many nodes as edges: they are of edges, as the edge_index is."""
    data = _data(9, RING)
    data.edge_attr = torch.arange(9, dtype=torch.float64)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor([0, 1, 2] * 3))
    for got in run_ranks(_selected_twice_on_rank, 3, str(tmp_path / 'parts')):
        assert_close(got, _selected_twice(data))


@pytest.mark.parametrize('num_parts', [1, 3])
def test_dropout_inside_messages_is_replayed(tmp_path: Path, num_parts: int) -> None:
    """Backward sees the masks of forward: the gradient is the derivative at a fixed seed."""
    data = _data(9, [(i, j) for i in range(9) for j in range(9) if (i * j) % 4 == 1 or i == j + 1])
    pyg_sar.partition_graph(data, num_parts, tmp_path / 'parts', method='random')
    shard = pyg_sar.load_shard(tmp_path / 'parts')
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


def test_backward_leaves_the_random_state_alone(tmp_path: Path) -> None:
    data = _data(9, RING)
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts')
    shard = pyg_sar.load_shard(tmp_path / 'parts')
    conv = pyg_sar.SARConv(GATConv(6, 3, dropout=0.5).double()).train()
    x = shard.x.detach().clone().requires_grad_()
    out = conv(x, shard.edge_index)
    before = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_masks_equal_plain_pyg_on_one_part(tmp_path: Path) -> None:
    # Masks are drawn by destination, which is the order of these edges.
    data = _data(9, sorted(RING + RING[::2], key=lambda edge: edge[1]))
    pyg_sar.partition_graph(data, 1, tmp_path / 'parts')
    shard = pyg_sar.load_shard(tmp_path / 'parts')
    plain = GATConv(6, 3, heads=2, dropout=0.5, add_self_loops=False).double().train()
    conv = pyg_sar.SARConv(plain)
    outs, grads = [], []
    for edge_index in (pyg_sar.gather(shard.edge_index), shard.edge_index):
        x = shard.x.detach().clone().requires_grad_()
        torch.manual_seed(3)
        outs.append(conv(x, edge_index))
        outs[-1].square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(outs[1], outs[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(grads[1], grads[0], rtol=0, atol=1e-12)
    assert (outs[0] - conv.eval()(shard.x, shard.edge_index)).abs().max() > 1e-3


@pytest.mark.parametrize('name', CONVS)
def test_training_after_inference_mode(tmp_path: Path, name: str) -> None:
    """What is computed once and kept must be usable in every mode."""
    data, parts = CASES['self loops']
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts', method=torch.tensor(parts))
    for shared in run_ranks(_infer_then_train, 3, name, str(tmp_path / 'parts')):
        torch.testing.assert_close(*shared, rtol=0, atol=1e-12)


def _infer_then_train(name: str, root: str) -> tuple[Tensor, Tensor]:
    shard = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    conv = pyg_sar.SARConv(CONVS[name]().double())
    with torch.inference_mode():
        inferred = conv(shard.x, shard.edge_index)
        conv(shard.x, shard.edge_index[:, ::2])
    out = conv(shard.x.detach().clone().requires_grad_(), shard.edge_index)
    out.sum().backward()
    conv(shard.x, shard.edge_index[:, ::2]).sum().backward()
    return pyg_sar.local((inferred.clone(), out.detach()))


class _Centred(MessagePassing):  # type: ignore[misc]
    """A message that reads all nodes, or all rows of a weight."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(aggr='sum')
        self.weight = torch.nn.Parameter(torch.ones(num_rows, 6))

    def forward(self, x: Tensor, edge_index: Tensor, *, of_nodes: bool) -> Tensor:
        all_rows = x if of_nodes else self.weight
        out: Tensor = self.propagate(edge_index, x=x, all_rows=all_rows)
        return out

    def message(self, x_j: Tensor, all_rows: Tensor) -> Tensor:
        return x_j - all_rows.mean(dim=0)


def _centred(root: str) -> list[Tensor]:
    data = pyg_sar.load_shard(root)
    conv = pyg_sar.SARConv(_Centred(3).double())
    outs = [conv(data.x, data.edge_index, of_nodes=each) for each in (True, False)]
    return [pyg_sar.gather(out.detach()) for out in outs]


@pytest.mark.parametrize('parts', [[0, 0, 0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 1, 1, 2, 2]])
def test_a_message_that_reads_all_nodes(tmp_path: Path, parts: list[int]) -> None:
    """Also where all ranks have as many nodes; a weight is no such thing."""
    graph = _data(9, [*RING, *((j, i) for i, j in RING)])
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(graph, 3, root, method=torch.tensor(parts))
    answers = run_ranks(_centred, 3, str(root))
    for place, of_nodes in enumerate((True, False)):
        expected = _Centred(3).double()(graph.x, graph.edge_index, of_nodes=of_nodes)
        assert_close(answers[0][place], expected.detach())
