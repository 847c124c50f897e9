"""One model on batches of each rank's own and on the whole graph: torch's DDP, and one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from hand_batches import batch_of
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import BatchNorm, GATConv, GCNConv, GINConv, InstanceNorm, SAGEConv
from torch_geometric.nn.models import GraphSAGE

import pyg_sar
from pyg_sar import DistributedDataParallel, gather
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import mean_of_batches


class Net(nn.Module):
    """Two convs, and norms before, between and inside of them."""

    def __init__(self, conv: Callable[[int, int], nn.Module], norm: Any = nn.Identity) -> None:
        super().__init__()
        self.before, self.between = norm(6), norm(8)
        self.first, self.second = conv(6, 8), conv(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.between(self.first(self.before(x), edge_index)).tanh()
        return self.second(h, edge_index)


def _gin(norm: Any) -> Callable[[int, int], nn.Module]:
    return lambda i, o: GINConv(nn.Sequential(nn.Linear(i, 8), norm(8), nn.ReLU(), nn.Linear(8, o)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    'SAGE': lambda: Net(SAGEConv),
    'SAGE, BatchNorm1d': lambda: Net(SAGEConv, nn.BatchNorm1d),
    'SAGE, BatchNorm momentum None': lambda: Net(SAGEConv, lambda c: BatchNorm(c, momentum=None)),
    'SAGE, InstanceNorm': lambda: Net(
        SAGEConv, lambda c: InstanceNorm(c, track_running_stats=True, affine=True)
    ),
    'GAT': lambda: Net(GATConv),
    'GCN': lambda: Net(GCNConv),
    'GIN, BatchNorm1d': lambda: Net(_gin(nn.BatchNorm1d), nn.BatchNorm1d),
    'GraphSAGE': lambda: GraphSAGE(6, 8, 2, 3, norm='BatchNorm'),
}

SEEDS = {
    2: [[[0, 5, 9], [17]], [[3], []], [[1, 2, 30], [8, 21, 22, 39]]],
    3: [[[0, 5], [9, 17, 20], []], [[1, 39], [], [7, 8]], [[4], [11, 12], [3, 14, 15]]],
    4: [[[0], [5, 9], [17], [30, 31]], [[1, 2], [], [], [35]], [[3], [4], [6], [7]]],
}
"""By world size the seeds of every step and rank; some have none."""


def _model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name]().double()


def _losses(model: nn.Module, batch: Data) -> Tensor:
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    return F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _grad(p: Tensor) -> Tensor:
    return torch.zeros_like(p) if p.grad is None else p.grad


def _found(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    gradients = {name: _grad(p).clone() for name, p in model.named_parameters()}
    return gradients, {name: t.clone() for name, t in model.state_dict().items()}


def _train_ranks(root: str, graph: Data, name: str, steps: Any, full: bool) -> Any:
    """Every step gives gradients and the state afterwards; with `full` a whole step after each."""
    data = pyg_sar.load_shard(root)
    model = DistributedDataParallel(_model(name))
    optimizer, found = _optimizer(model), []

    def step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((loss.detach(), *_found(model.module)))

    for seeds in steps:
        batch = batch_of(graph, torch.tensor(seeds[rank()], dtype=torch.int64))
        step(mean_of_batches(_losses(model, batch)))
        if full:
            out = model(data.x, data.edge_index)[data.train_mask]
            step(F.cross_entropy(out, data.y[data.train_mask]))
    model.eval()
    with torch.no_grad():
        return found, gather(model(data.x, data.edge_index))


def _mean_of_buffers(model: nn.Module, states: list[dict[str, Tensor]]) -> None:
    for name, buffer in model.named_buffers():
        mean = torch.stack([state[name].double() for state in states]).mean(0)
        buffer.data = mean.to(buffer.dtype)


def _train_alone(graph: Data, name: str, steps: Any, full: bool) -> Any:
    """What torch's DDP has on every rank, but for the running statistics, which are the mean."""
    model = _model(name)
    optimizer, found = _optimizer(model), []

    def end_step(loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append((loss.detach(), *_found(model)))

    for seeds in steps:
        batches = [batch_of(graph, torch.tensor(each)) for each in seeds if each]
        before = {name: b.clone() for name, b in model.named_buffers()}
        losses, after = [], []
        for batch in batches:
            for key, buffer in model.named_buffers():
                buffer.data = before[key].clone()  # of every rank its own
            losses.append(_losses(model, batch))
            after.append({key: b.detach().clone() for key, b in model.named_buffers()})
        _mean_of_buffers(model, after)
        end_step(torch.cat(losses).mean())
        if full:
            out = model(graph.x, graph.edge_index)[graph.train_mask]
            end_step(F.cross_entropy(out, graph.y[graph.train_mask]))
    model.eval()
    with torch.no_grad():
        return found, model(graph.x, graph.edge_index)


@pytest.mark.parametrize(
    'full', [True, pytest.param(False, marks=pytest.mark.slow)], ids=['and full batches', 'batches']
)
@pytest.mark.parametrize('name', few(MODELS))
@pytest.mark.parametrize(
    'world_size', [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4))]
)
def test_training_on_batches_and_exact_evaluation(tmp_path, name, world_size, full):
    """Gradients, weights and running statistics of every step, and then outputs of the whole."""
    graph, steps = small_graph(), SEEDS[world_size]
    root = str(cut(graph, world_size, tmp_path / 'parts'))
    results = run_as_threads(_train_ranks, world_size, root, graph, name, steps, full)
    steps_alone, out = _train_alone(graph, name, steps, full)
    for i, (loss, gradients, state) in enumerate(steps_alone):
        for found, _ in results:
            assert_close(found[i][0], loss, tolerance=1e-10)
            for got, want in zip(found[i][1:], (gradients, state), strict=True):
                assert list(got) == list(want)
                for key in want:
                    assert_close(got[key], want[key], tolerance=1e-10)
            for key, tensor in found[i][2].items():  # weights and statistics: to the bit
                assert torch.equal(tensor, results[0][0][i][2][key]), key
    for _, rows in results:
        assert_close(rows, out, tolerance=1e-10)


def _gradients_of_parts(graph: Data, name: str, seeds: list[list[int]], world_size: int) -> Any:
    """A rank computes the disjoint union of the batches of its parts."""
    model = DistributedDataParallel(_model(name))
    own = seeds[rank() :: world_size]
    union = Batch.from_data_list([batch_of(graph, torch.tensor(each)) for each in own])
    out = model(union.x, union.edge_index)[union.is_seed]
    loss = mean_of_batches(F.cross_entropy(out, union.y[union.is_seed], reduction='none'))
    loss.backward()
    return loss.detach(), _found(model.module)[0]


@pytest.mark.parametrize('name', ['SAGE', 'GAT', 'GCN'])
def test_parts_on_any_number_of_ranks(name):
    seeds = [[0, 5, 9], [17], [30, 31], [3, 4, 39, 22]]
    results = [
        run_as_threads(_gradients_of_parts, n, small_graph(), name, seeds, n) for n in (1, 2, 4)
    ]
    loss, want = results[0][0]
    for found in results[1:]:
        for other, gradients in found:
            assert_close(other, loss)
            for key, gradient in want.items():
                assert_close(gradients[key], gradient)


def _accumulated(graph: Data, seeds: Any) -> Any:
    model = DistributedDataParallel(_model('SAGE, BatchNorm1d'))
    for i, of_ranks in enumerate(seeds):
        with model.no_sync() if i + 1 < len(seeds) else nullcontext():
            batch = batch_of(graph, torch.tensor(of_ranks[rank()], dtype=torch.int64))
            mean_of_batches(_losses(model, batch)).backward()
    return _found(model.module)


def test_accumulated_gradients():
    """Two batches, of which one rank has only one: a rank's statistics are those after both."""
    graph, seeds = small_graph(), [[[0, 5], [9, 17, 20], []], [[1, 39], [21], [7, 8]]]
    results = run_as_threads(_accumulated, 3, graph, seeds)
    model = _model('SAGE, BatchNorm1d')
    states = []
    for r in range(3):
        own = copy.deepcopy(model)
        for i, of_ranks in enumerate(seeds):
            if of_ranks[r]:
                losses = _losses(own, batch_of(graph, torch.tensor(of_ranks[r])))
                (losses.sum() / sum(map(len, seeds[i]))).backward()
        states.append(own)
    for gradients, state in results:
        for name, gradient in gradients.items():
            given = [dict(own.named_parameters())[name].grad for own in states]
            assert_close(gradient, torch.stack(given).sum(0), tolerance=1e-10)
        for name in ('before.running_mean', 'between.running_var'):
            want = torch.stack([own.state_dict()[name] for own in states]).mean(0)
            assert_close(state[name], want)
            assert torch.equal(state[name], results[0][1][name])
        assert int(state['before.num_batches_tracked']) == 2  # (2 + 2 + 1) / 3, rounded


def _without_history(graph: Data) -> Any:
    """The losses of a rank without seeds are a plain tensor: they depend on no model."""
    model = DistributedDataParallel(_model('SAGE, BatchNorm1d'))
    seeds = torch.tensor([[1, 2, 3], []][rank()], dtype=torch.int64)
    losses = _losses(model, batch_of(graph, seeds))
    mean_of_batches(losses if seeds.numel() else torch.zeros(0, dtype=torch.float64)).backward()
    return _found(model.module)


def test_a_rank_whose_losses_depend_on_nothing(graph):
    results = run_as_threads(_without_history, 2, graph)
    model = _model('SAGE, BatchNorm1d')
    _losses(model, batch_of(graph, torch.tensor([1, 2, 3]))).mean().backward()
    for gradients, state in results:
        for name, p in model.named_parameters():
            assert_close(gradients[name], p.grad)
        for name, tensor in model.state_dict().items():
            assert_close(state[name], tensor)


def _nobody_has_seeds(graph: Data) -> Any:
    model = DistributedDataParallel(_model('GIN, BatchNorm1d'))
    before = {name: t.clone() for name, t in model.module.state_dict().items()}
    loss = mean_of_batches(_losses(model, batch_of(graph, torch.empty(0, dtype=torch.int64))))
    loss.backward()
    return loss.item(), before, *_found(model.module)


def test_a_step_without_any_seeds(graph):
    for loss, before, gradients, state in run_as_threads(_nobody_has_seeds, 3, graph):
        assert loss == 0
        assert all(not gradient.any() for gradient in gradients.values())
        assert all(torch.equal(state[name], tensor) for name, tensor in before.items())


def _counted(root: str, graph: Data) -> list[list[str]]:
    """The words of every all-reduce of a step on a batch, of an evaluation on one, and of both."""
    data, batch = pyg_sar.load_shard(root), batch_of(graph, torch.tensor([rank(), 7]))
    model = DistributedDataParallel(_model('SAGE, BatchNorm1d'))
    from pyg_sar.comm.ranks import current  # of the rank's process

    calls: list[list[str]] = []
    comm: Any = current()
    meet = comm.meet

    def counting(words: str, *args: Any) -> Any:
        calls[-1].append(words.split(' (')[0])
        return meet(words, *args)

    comm.meet = counting
    for training in (True, False):
        calls.append([])
        model.train(training)
        losses = _losses(model, batch)
        calls.append([])
        loss = mean_of_batches(losses)
        calls.append([])
        loss.backward()
    calls.append([])
    model(data.x, data.edge_index)
    return calls


def test_collectives_of_a_step(tmp_path):
    """Threads compare what they are at where they meet for the numbers."""
    graph = small_graph()
    calls = run_as_threads(_counted, 2, str(cut(graph, 2, tmp_path / 'parts')), graph)
    assert calls[0] == calls[1]
    forward, loss, backward, evaluation, _, _, whole = calls[0]
    assert forward == []
    assert [len(loss), len(backward)] == [1, 1]
    assert 'sum of the gradients of parameters of a batch in training' in backward[-1]
    assert evaluation == []
    assert whole  # the convs exchange rows
