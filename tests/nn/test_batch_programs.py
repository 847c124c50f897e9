"""Programs that mix batches and the whole graph: right, or refused with what to do."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, assert_alike, cut_of
from hand_batches import batch_of
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from small_graphs import assert_close, small_graph
from test_batches import _losses, mean_loss
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GCNConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import pyg_sar
from pyg_sar import DistributedDataParallel, NodeEmbedding, gather
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import mean_of_batches


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = SAGEConv(6, 8), nn.BatchNorm1d(8), SAGEConv(8, 3)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.first(x, edge_index)).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.encode(x, edge_index), edge_index)


def _net() -> Net:
    torch.manual_seed(0)
    return Net().double()


def _own(*of_ranks: list[int]) -> Data:
    """The batch of this rank."""
    return batch_of(small_graph(), torch.tensor(of_ranks[rank()], dtype=torch.int64))


def _loss(model: nn.Module, batch: Data) -> Tensor:
    return mean_of_batches(_losses(model, batch))


# Ranks that do different things end in an error that tells what each is at.


def _one_on_the_whole_graph(root: str) -> None:
    data, model = pyg_sar.load_shard(root), DistributedDataParallel(_net())
    if rank() == 0:
        F.cross_entropy(model(data.x, data.edge_index), data.y).backward()
    else:
        _loss(model, _own([1, 2], [1, 2])).backward()


def _one_in_evaluation(root: str) -> None:
    model = DistributedDataParallel(_net())
    model.train(rank() == 0)
    _loss(model, _own([1, 2], [1, 2])).backward()


def _one_without_a_backward(root: str) -> None:
    model = DistributedDataParallel(_net())
    loss = _loss(model, _own([1, 2], [1, 2]))
    if rank() == 0:
        loss.backward()


_IN = 'parameters of a batch in '
_AT = 'rank 0 is at the sum of the gradients of parameters'
PARTING = [
    (_one_on_the_whole_graph, ["layer 'first' (SAGEConv)", 'in mean_of_batches']),
    (_one_in_evaluation, [f'{_IN}training', f'{_IN}evaluation']),
    (_one_without_a_backward, [_AT, 'rank 1 has finished']),
]


@pytest.mark.parametrize(('program', 'words'), PARTING)
def test_ranks_that_part(program, words):
    with pytest.raises(RuntimeError) as caught:
        run_as_threads(program, 2, cut_of(small_graph, 2))
    for word in words:
        assert word in str(caught.value)


# A batch has the norms of a batch, wherever they are called; the whole graph those of all ranks.


@on_threads(3)
def test_a_method_of_the_model_is_plain_on_batches():
    model, net, batch = DistributedDataParallel(_net()), _net(), _own([1, 2], [], [9])
    out = model.module.encode(batch.x, batch.edge_index)
    if batch.batch_size:
        assert_close(out.detach(), net.encode(batch.x, batch.edge_index).detach())
        assert_close(model.module.norm.running_mean, net.norm.running_mean)


class _Both(nn.Module):
    """Gets a batch and the whole graph, and runs both."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _net()

    def forward(self, batch: Data, whole: Data) -> tuple[Tensor, Tensor]:
        return self.net(batch.x, batch.edge_index), self.net(whole.x, whole.edge_index)


@on_ranks(2, by='threads')
def test_a_batch_and_the_whole_graph_in_one_forward(data):
    graph, batch = small_graph(), _own([1, 2], [9])
    of_batch, of_graph = DistributedDataParallel(_Both())(batch, data)
    assert_close(gather(of_graph.detach()), _net()(graph.x, graph.edge_index).detach())
    assert_close(of_batch.detach(), _net()(batch.x, batch.edge_index).detach())


@on_ranks(2, by='threads')
def test_a_conv_that_keeps_its_edges(data):
    batch = _own([0], [1])
    conv = DistributedDataParallel(GCNConv(6, 3, cached=True).double())
    conv(data.x, data.edge_index)
    with pytest.raises(ValueError, match='cached'):
        conv(batch.x, batch.edge_index)
    conv(data.x, data.edge_index)


# Backwards in other orders.


def _two_models() -> list[list[Tensor]]:
    """The second model takes what the first gives; the losses of rank 1 depend on neither."""
    torch.manual_seed(0)
    models = [DistributedDataParallel(conv.double()) for conv in (SAGEConv(6, 5), SAGEConv(5, 3))]
    batch = _own([1, 2], [])
    out = models[1](models[0](batch.x, batch.edge_index), batch.edge_index)[: batch.batch_size]
    losses = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
    mean_of_batches(losses if rank() == 0 else losses.detach()).backward()
    gradients = [p.grad for model in models for p in model.module.parameters()]
    assert all(gradient.any() for gradient in gradients)
    return gradients


@on_threads(2)
def test_a_second_backward():
    """The first backward has changed the running statistics; the second goes through the norm."""
    model, found = DistributedDataParallel(_net()), []
    loss = _loss(model, _own([1, 2], [9]))
    for keeps in (True, False):
        model.zero_grad()
        loss.backward(retain_graph=keeps)
        found.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *found))


def _in_one_backward(data: Any, wrap: Wrap) -> list[Any]:
    """A batch and the whole graph."""
    model, seeds = wrap(_net()), [[1, 2], [9]]
    loss = mean_loss(model, seeds, partial(batch_of, small_graph()), _losses, wrap)
    (loss + F.cross_entropy(model(data.x, data.edge_index), data.y)).backward()
    return [p.grad for p in model.parameters()]


def _between(root: str) -> list[Tensor]:
    """While gradients gather, rank 1 without rows so far: evaluation on the whole graph."""
    data, model = pyg_sar.load_shard(root), DistributedDataParallel(_net())
    with model.no_sync():
        _loss(model, _own([1, 2], [], [9])).backward()
    with torch.no_grad():
        model.eval()(data.x, data.edge_index)
    found = model.module.norm.running_mean.clone()
    model.train()
    with model.no_sync():
        _loss(model, _own([], [3], [4])).backward()
    model(data.x, data.edge_index).sum().backward()
    return [found, *(b.clone() for b in model.module.buffers())]


def test_the_whole_graph_while_gradients_gather():
    graph, net = small_graph(), _net()
    results = run_as_threads(_between, 3, cut_of(small_graph, 3))
    assert all(torch.equal(a, b) for r in results for a, b in zip(r, results[0], strict=True))
    batches = [batch_of(graph, torch.tensor(seeds)) for seeds in ([1, 2], [9], [3], [4])]
    means = [net.first(b.x, b.edge_index).mean(0).detach() for b in batches]
    first = 0.1 * (means[0] + means[1]) / 2
    assert_close(results[0][0], first)
    second = 0.9 * first + 0.1 * (means[2] + means[3]) / 2
    whole = net.first(graph.x, graph.edge_index).mean(0).detach()
    assert_close(results[0][1], 0.9 * second + 0.1 * whole)


def _raise_interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@on_ranks(2, by='threads')
def test_after_an_interrupt_from_the_keyboard(data):
    """In a notebook: a forward on a batch is stopped, and the next cell runs the whole graph."""
    graph, model, batch = small_graph(), DistributedDataParallel(_net()), _own([1, 2], [9])
    handle = model.module.second.register_forward_pre_hook(_raise_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(batch.x, batch.edge_index)
    handle.remove()
    out = gather(model(data.x, data.edge_index).detach())
    assert_close(out, _net()(graph.x, graph.edge_index).detach())


def _rank_0_evaluates() -> list[Tensor]:
    model, batch = DistributedDataParallel(_net()), _own([1, 2], [9])
    for evaluates in (rank() == 0, False):
        _loss(model, batch).backward()
        if evaluates:  # with gradients, which nobody asks for
            model.eval()(batch.x, batch.edge_index)
            model.train()
    return list(model.module.state_dict().values())


# Kinds of models and batches.


class OfData(Net):
    def forward(self, data: Data) -> Tensor:
        return super().forward(data.x, data.edge_index)


@on_threads(2)
def test_models_of_data_objects():
    torch.manual_seed(0)
    model, batch = DistributedDataParallel(OfData().double()), _own([1, 2], [9])
    want = _net()(batch.x, batch.edge_index).detach()
    for out in (model(batch), model(data=batch)):
        assert_close(out.detach(), want)


class Trimmed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([SAGEConv(6, 8), SAGEConv(8, 3)])
        self.norm = BatchNorm(8)

    def forward(self, x: Tensor, edge_index: Tensor, nodes: Any, edges: Any) -> Any:
        for i, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(i, nodes, edges, x, edge_index)
            x = conv(x, edge_index)
            x = self.norm(x).relu() if i == 0 else x
        return x


def _layered(seeds: Tensor) -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Two hops as a loader gives them: nodes and edges in the order of the hops."""
    graph = small_graph()
    nodes = new = seeds.tolist()
    hops, edges = [len(new)], []
    for _ in range(2):
        into = [e for e in graph.edge_index.t().tolist() if e[1] in new]
        edges.append(into)
        new = list(dict.fromkeys(src for src, _ in into if src not in nodes))
        nodes = nodes + new
        hops.append(len(new))
    flat = [[nodes.index(src), nodes.index(dst)] for hop in edges for src, dst in hop]
    edge_index = torch.tensor(flat, dtype=torch.int64).view(-1, 2).t()
    return graph.x[nodes], edge_index, hops, [len(hop) for hop in edges]


def _of_layers(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch)[: batch[2][0]].square().sum(dim=1)


def _trimmed(data: Any, wrap: Wrap) -> list[Any]:
    model = wrap(Trimmed().double())
    loss = mean_loss(model, [[1, 2, 3], []], _layered, _of_layers, wrap)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize('program', [_in_one_backward, _trimmed])
def test_as_one_process(program):
    assert_alike(program, ranks=(2,), bits=True, tolerance=1e-12)


def _lazy() -> list[Tensor]:
    """Lazy models may see a batch first."""
    torch.manual_seed(0)
    batch = _own([], [1, 2])
    model = DistributedDataParallel(nn.ModuleList([SAGEConv(-1, 3)]).double())
    with torch.no_grad():
        model[0](batch.x, batch.edge_index)
    found = [p.detach() for p in DistributedDataParallel(model).parameters()]
    assert all(p.size(-1) in (3, 6) for p in found)
    return found


@pytest.mark.parametrize('program', [_two_models, _rank_0_evaluates, _lazy])
def test_ranks_have_the_same(program):
    assert all(map(torch.equal, *run_as_threads(program, 2)))


@on_ranks(2, by='threads')
def test_rows_of_an_embedding_that_are_not_there(data):
    table, ids = NodeEmbedding(data, 6), torch.tensor([[1, 2], [39, 0]])
    assert torch.equal(table(ids), table.weight[ids])
    for each in (40, -1):
        with pytest.raises(ValueError, match="no node's id"):
            table(torch.tensor([each]))
