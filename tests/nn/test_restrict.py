"""Restricted layers: the outputs and gradients of the whole graph, from the edges that matter."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import assert_same, cut_of, leaves
from few import few
from ranks import run_as_threads
from small_graphs import ASSIGNMENTS, assert_all_raise, assert_close, assign, attempt, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphConv, SAGEConv, SimpleConv, TransformerConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

import pyg_sar
from pyg_sar import DistributedDataParallel, SARConv, partition_graph, restrict
from pyg_sar.rows.restrict import RestrictedLayers
from pyg_sar.shard.blocks import plan_of

LAYOUTS = [(1, 1), (1, 3), (2, 2), (3, 3), (2, 6), (4, 4), (4, 8)]
"""World sizes and numbers of parts."""


TOLERANCE = 1e-10


def _on_ranks(world_size: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return [fn(*args)] if world_size == 1 else run_as_threads(fn, world_size, *args)


class GCN(torch.nn.Module):
    """GCNConv(normalize=False) for pairs: its parts, weights from outside."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(in_channels, out_channels)
        self.conv = SimpleConv('sum')

    def forward(self, x: Any, edge_index: Tensor, edge_weight: Tensor) -> Any:
        return self.lin(self.conv(x, edge_index, edge_weight))


CONVS: dict[str, tuple[Callable[[int, int], torch.nn.Module], tuple[str, ...]]] = {
    'sage': (SAGEConv, ()),
    'sage max': (lambda i, o: SAGEConv(i, o, aggr='max', project=True), ()),
    'graph': (GraphConv, ('edge_weight',)),
    'gat': (lambda i, o: GATConv(i, o, add_self_loops=False, edge_dim=4), ('edge_attr',)),
    'gat with loops': (lambda i, o: GATConv(i, o), ()),
    'transformer': (lambda i, o: TransformerConv(i, o, heads=2, concat=False), ()),
    'gcn': (GCN, ('edge_weight',)),
}
"""A conv from its widths, and the edge tensors that it takes."""

WANTED: dict[str, Callable[[Data], Tensor]] = {
    'train_nodes': lambda data: data.train_mask,
    'two_nodes': lambda data: torch.isin(torch.arange(data.num_nodes), torch.tensor([7, 30])),
    'one_part': lambda data: data.part == int(data.part.max()),
    'all_nodes': lambda data: torch.ones(data.num_nodes, dtype=torch.bool),
}
"""Which nodes' outputs are wanted: the name and the making of a mask of the whole graph."""


class Net(torch.nn.Module):
    """Layers of one conv; on a graph or on restricted layers."""

    def __init__(self, name: str, num_layers: int) -> None:
        super().__init__()
        make, self.edge_tensors = CONVS[name]
        widths = [6, *[8] * (num_layers - 1), 3]
        self.convs = torch.nn.ModuleList(make(*pair) for pair in pairwise(widths))

    def forward(self, x: Tensor, data: Data, layers: RestrictedLayers | None = None) -> Tensor:
        values = [data[name] for name in self.edge_tensors]
        for number, conv in enumerate(self.convs):
            x = torch.tanh(x) if number else x
            if layers is None:
                x = conv(x, data.edge_index, *values)
                continue
            layer = layers[number]
            of_layer = [v[layer.edges] for v in values]
            x = conv((x, x[layer.dst]), layer.edge_index, *of_layer)
        return x


def _data(num_parts: int, kind: str = 'uneven') -> Data:
    """The small graph with its parts, a mask for every kind of wanted nodes, and fixed targets."""
    data = small_graph()
    data.part = assign(data.num_nodes, num_parts, kind)
    for name, wanted in WANTED.items():
        data[name] = wanted(data)
    generator = torch.Generator().manual_seed(9)
    data.target = torch.randn(data.num_nodes, 3, generator=generator, dtype=torch.float64)
    return data


def _net(name: str, num_layers: int) -> Net:
    torch.manual_seed(3)
    return Net(name, num_layers).double()


def _loss(out: Tensor, target: Tensor) -> Tensor:
    return (out - target).square().sum(1)


def _trained(
    root: Path, name: str, num_layers: int, mode: Any, device: str = 'cpu'
) -> dict[str, Any]:
    data = pyg_sar.load_shard(root).to(device)
    answers = {}
    for wanted in WANTED:
        layers = restrict(data, data[wanted], num_layers)
        net = _net(name, num_layers).to(device)
        parameters = dict(net.named_parameters())
        model = DistributedDataParallel(net, mode=mode)
        x = data.x.clone().requires_grad_()
        out = model(x[layers.input_nodes], data, layers)
        _loss(out, data.target[layers.output_nodes]).mean().backward()
        gradients = {key: p.grad.cpu() for key, p in parameters.items()}
        rows = layers.output_nodes, out.detach(), x.grad
        answers[wanted] = [*(pyg_sar.gather(each).cpu() for each in rows), gradients]
    return answers


def _compare(answers: list[Any], data: Data, name: str, num_layers: int) -> None:
    for wanted in WANTED:
        net = _net(name, num_layers)
        x = data.x.clone().requires_grad_()
        out = net(x, data)[data[wanted]]
        _loss(out, data.target[data[wanted]]).mean().backward()
        gradients = {key: p.grad for key, p in net.named_parameters()}
        want = leaves([data[wanted].nonzero().view(-1), out, x.grad, gradients])
        for answer in answers:
            assert_same(leaves(answer[wanted]), want, tolerance=TOLERANCE)


METHODS = ['empty part', 'metis', 'random', 'one reader']
MODES = ['one_shot', 'sequential_no_remat']
KINDS = ['sage', 'transformer', 'sage max']
CASES = [
    *few(product(CONVS, [(3, 3), (1, 3), (2, 6)], ['uneven'], ['sequential']), every=4),
    *few(product(['sage', 'gat'], LAYOUTS, ['uneven'], ['sequential']), every=14),
    *few(product(['sage', 'gat'], [(3, 3), (2, 4)], METHODS, ['sequential']), every=8),
    *few(product(KINDS, [(1, 3), (3, 6)], ['uneven'], MODES), every=3),
]


@pytest.mark.parametrize(('name', 'layout', 'method', 'mode'), CASES, ids=str)
def test_outputs_and_gradients_are_those_of_the_whole_graph(
    name: str, layout: tuple[int, int], method: str, mode: str, tmp_path: Path
) -> None:
    world_size, num_parts = layout
    data = _data(num_parts, method)
    chosen = data.part if method in ASSIGNMENTS else method
    partition_graph(data, num_parts, tmp_path / 'parts', method=chosen)
    answers = _on_ranks(world_size, _trained, tmp_path / 'parts', name, 3, mode)
    _compare(answers, data, name, 3)


def _structure(root: Path, wanted: str) -> list[Any]:
    data = pyg_sar.load_shard(root)
    layers = restrict(data, data[wanted], 3)
    whole = pyg_sar.gather
    input_nodes, output_nodes = whole(layers.input_nodes), whole(layers.output_nodes)
    assert torch.equal(output_nodes, whole(data[wanted]).nonzero().view(-1))
    assert layers[0].num_src == input_nodes.numel()
    assert torch.equal(output_nodes, input_nodes[: layers[-1].num_dst])
    assert len(layers) == len(list(layers)) == 3
    answer: list[Any] = []
    for layer, after in zip(layers, [*list(layers)[1:], None], strict=True):
        handle = layer.edge_index.handle
        shard = handle.shard
        assert handle.is_whole or shard.world_size == 1
        assert layer.num_dst == (after.num_src if after else output_nodes.numel())
        assert whole(layer.dst).tolist() == list(range(layer.num_dst))
        assert shard.is_bipartite
        # The edges are those in data; every halo row is read.
        nodes = input_nodes[: layer.num_src]
        edges = whole(layer.edges)
        assert torch.equal(nodes[whole(layer.edge_index)], whole(data.edge_index)[:, edges])
        halo = handle.ids[0].unique()
        assert int((halo >= shard.num_own).sum()) == shard.num_halo
        # As if its blocks were found by sorting.
        plan = plan_of(handle)
        shard.kept.clear()
        sorted_ = plan_of(handle.with_ids(handle.ids.clone()))
        for block, found in zip(plan.blocks, sorted_.blocks, strict=True):
            assert torch.equal(block.edge_index, found.edge_index)
        answer.append((edges, nodes))
    return answer


@pytest.mark.parametrize(
    ('layout', 'wanted'),
    [*product(LAYOUTS, ['two_nodes']), *product([(3, 3)], [w for w in WANTED if w != 'two_nodes'])],
    ids=str,
)
def test_a_layer_has_the_edges_into_the_nodes_that_the_next_one_reads(
    layout: tuple[int, int], wanted: str, tmp_path: Path
) -> None:
    world_size, num_parts = layout
    data = _data(num_parts)
    root = tmp_path / 'parts'
    partition_graph(data, num_parts, root, method=data.part)
    answers = _on_ranks(world_size, _structure, root, wanted)
    needed = data[wanted]
    for number in (2, 1, 0):
        edges = needed[data.edge_index[1]]
        ids, nodes = answers[0][number]
        assert ids.sort().values.tolist() == edges.nonzero().view(-1).tolist()
        needed = needed.clone()
        needed[data.edge_index[0, edges]] = True
        assert nodes.sort().values.tolist() == needed.nonzero().view(-1).tolist()
    if wanted == 'two_nodes':
        assert int(data[wanted][data.edge_index[1]].sum()) < data.edge_index.size(1) // 4


def _by_ids(root: str) -> None:
    data = pyg_sar.load_shard(root)
    ids = torch.arange(data.num_nodes - 1, -1, -3)
    layers = restrict(data, ids, 2)
    assert torch.equal(pyg_sar.gather(layers.output_nodes), ids)
    model = pyg_sar.DistributedDataParallel(_net('sage', 2))
    out = pyg_sar.gather(model(data.x[layers.input_nodes], data, layers))
    assert_close(out, pyg_sar.gather(model(data.x, data))[ids], tolerance=TOLERANCE)


@pytest.mark.parametrize(('world_size', 'num_parts'), [(1, 2), (3, 3)])
def test_ids_give_outputs_in_their_order(world_size: int, num_parts: int) -> None:
    _on_ranks(world_size, _by_ids, cut_of(small_graph, num_parts))


def _with_norm() -> Data:
    plain = small_graph()
    index, weight = gcn_norm(plain.edge_index, num_nodes=plain.num_nodes, dtype=torch.float64)
    return Data(x=plain.x, train_mask=plain.train_mask, edge_index=index, edge_weight=weight)


def _restricted_gcn(root: str) -> tuple[Tensor, Tensor]:
    data = pyg_sar.load_shard(root)
    layers = restrict(data, data.train_mask, 2)
    out = pyg_sar.DistributedDataParallel(_net('gcn', 2))(data.x[layers.input_nodes], data, layers)
    return pyg_sar.gather(layers.output_nodes), pyg_sar.gather(out.detach())


def test_weights_of_gcn_norm_made_before_partitioning() -> None:
    """What the docstring tells users of GCNConv to do gives GCNConv's outputs."""
    plain = small_graph()
    net = _net('gcn', 2)
    x = plain.x
    for number, gcn in enumerate(net.convs):
        conv = GCNConv(gcn.lin.in_features, gcn.lin.out_features).double()
        with torch.no_grad():
            conv.lin.weight.copy_(gcn.lin.weight)
            conv.bias.copy_(gcn.lin.bias)
        # The bias of a Linear before the sum would be weighted, too; here it is after it.
        x = conv(torch.tanh(x) if number else x, plain.edge_index)
    for ids, rows in run_as_threads(_restricted_gcn, 3, cut_of(_with_norm, 3)):
        assert_close(rows, x[ids].detach(), tolerance=TOLERANCE)


def test_the_example_of_the_docs() -> None:
    page = (Path(__file__).parents[2] / 'docs/models.md').read_text(encoding='utf-8')
    example = re.search(r'<!-- restrict-example -->\n```python\n(.*?)```', page, re.DOTALL)
    assert example is not None
    data = pyg_sar.load_shard(cut_of(small_graph, 2))
    convs = [SARConv(SAGEConv(6, 8).double()), SARConv(SAGEConv(8, 3).double())]
    scope = {'pyg_sar': pyg_sar, 'F': F, 'data': data, 'convs': convs}
    exec(example[1], scope)
    x = data.x
    for conv in convs:
        x = conv(x, data.edge_index).relu()
    expected = F.cross_entropy(x[data.train_mask], data.y[data.train_mask])
    assert_close(scope['loss'], expected, tolerance=TOLERANCE)


def _call(normalize: bool, is_pair: bool) -> Callable[[Any, bool], Any]:
    def call(data: Any, is_last: bool) -> Any:
        layers = restrict(data, data.train_mask, 1)
        x = torch.ones_like(data.x)[layers.input_nodes].float()
        given = (x, x[layers[0].dst]) if is_pair else x
        return SARConv(GCNConv(6, 3, normalize=normalize))(given, layers[0].edge_index)

    return call


def _again(data: Any) -> Data:
    return Data(edge_index=restrict(data, data.train_mask, 1)[0].edge_index)


PLAIN = Data(edge_index=torch.zeros(2, 0, dtype=torch.int64))
WRONG: list[tuple[Callable[[Any, bool], Any], tuple[str, ...]]] = [
    # Convs that read more than the layer has.
    (_call(True, True), ('bipartite',)),
    (_call(True, False), ('pair',)),
    (_call(False, False), ('pair',)),
    # Data, nodes and numbers, some of them on the last rank alone.
    (lambda d, last: restrict(PLAIN if last else d, d.train_mask, 2), ("'data'", 'got Tensor')),
    (lambda d, last: restrict(pyg_sar.local(d), d.train_mask, 2), ("'data'", 'got LocalEdges')),
    (lambda d, last: restrict(_again(d), d.train_mask, 2), ("'data'",)),
    (
        lambda d, last: restrict(d, pyg_sar.local(d.train_mask)[:-1] if last else d.train_mask, 2),
        ("'nodes'", 'torch.bool'),
    ),
    (
        lambda d, last: restrict(d, torch.tensor([d.num_nodes]) if last else d.train_mask, 2),
        ("'nodes'",),
    ),
    (
        lambda d, last: restrict(d, torch.zeros(2).long() if last else d.train_mask, 2),
        ('repeated',),
    ),
    (lambda d, last: restrict(d, d.train_mask.double(), 2), ("'nodes'", 'torch.float64')),
    (lambda d, last: restrict(d, [0], 2), ("'nodes'", 'list')),
    (lambda d, last: restrict(d, d.train_mask, 0), ('num_layers',)),
    (lambda d, last: restrict(d, d.train_mask, 2 + last), ('num_layers',)),
]
"""What is refused on all ranks, and its words; the last one only on several ranks."""


def _wrong(root: str) -> list[str]:
    data = pyg_sar.load_shard(root)
    shard = data.edge_index.handle.shard
    is_last = shard.rank == shard.world_size - 1
    return [attempt(do, data, is_last) for do, _ in WRONG[: None if shard.world_size > 1 else -1]]


@pytest.mark.parametrize('world_size', [1, 2])
def test_wrong_arguments_raise_on_all_ranks(world_size: int) -> None:
    answers = _on_ranks(world_size, _wrong, cut_of(small_graph, 2))
    for outcomes, (_, words) in zip(zip(*answers, strict=True), WRONG, strict=False):
        assert_all_raise(outcomes, 'ValueError', *words)
