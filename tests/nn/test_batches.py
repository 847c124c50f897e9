"""One model on batches of each rank's own and on the whole graph: torch's DDP, and one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import Wrap, as_one_process, gradient, itself
from few import few
from hand_batches import batch_of, hetero_batch_of
from hetero_graphs import hetero_graph
from hetero_models import METADATA
from on_ranks import on_ranks, on_threads
from ranks import run_as_threads
from small_graphs import assert_close, small_graph
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from traffic import counted

from pyg_sar import DistributedDataParallel, NodeEmbedding
from pyg_sar.comm.ranks import rank
from pyg_sar.loader import mean_of_batches

Seeds = list[list[int]]
"""Of every rank."""


def mean_loss(
    model: nn.Module, seeds: Seeds, batch: Callable[[Tensor], Any], losses: Any, wrap: Wrap
) -> Tensor:
    """The mean of the losses of all ranks' batches: on a rank, or in one process.

    In one process every rank has statistics of its own, as in torch's DDP, and then their mean, of
    those that saw rows.
    """
    if wrap is not itself:
        return mean_of_batches(losses(model, batch(torch.tensor(seeds[rank()]).long())))
    before = {name: b.clone() for name, b in model.named_buffers()}
    found, after = [], []
    for own in filter(None, seeds):
        _set_buffers(model, {name: b.clone() for name, b in before.items()})
        found.append(losses(model, batch(torch.tensor(own))))
        after.append({name: b.detach().clone() for name, b in model.named_buffers()})
    new = {}
    for name, buffer in before.items():
        of_module = [n for n in before if n.rpartition('.')[0] == name.rpartition('.')[0]]
        saw = [s for s in after if any(not torch.equal(s[n], before[n]) for n in of_module)]
        mean = torch.stack([s[name].double() for s in saw or [before]]).mean(0)
        new[name] = mean.to(buffer.dtype)
    _set_buffers(model, new)
    return torch.cat(found).mean()


def _set_buffers(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Other tensors: backward reads those of forward."""
    for name, value in values.items():
        owner, _, last = name.rpartition('.')
        setattr(model.get_submodule(owner), last, value)


def _trained(model: nn.Module, losses: Iterable[Callable[[], Tensor]]) -> list[Any]:
    """Of every step of SGD the loss, gradients and the state afterwards."""
    inner: Any = getattr(model, 'module', model)
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for loss_of in losses:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        gradients = [gradient(p).clone() for p in inner.parameters()]
        state = {name: t.clone() for name, t in inner.state_dict().items()}
        found.append([loss.detach(), gradients, state])
    return found


def _net(conv: Callable[[int, int], nn.Module], norm: Any = nn.Identity) -> nn.Module:
    """Two convs, and norms before, between and inside of them."""
    first, second = ((conv(*widths), 'x, e -> x') for widths in ((6, 8), (8, 3)))
    return pyg.Sequential('x, e', [(norm(6), 'x -> x'), first, norm(8), nn.Tanh(), second])


def _gin(i: int, o: int) -> nn.Module:
    layers = nn.Linear(i, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, o)
    return pyg.GINConv(nn.Sequential(*layers))


_without_momentum = partial(pyg.BatchNorm, momentum=None)
_instance_norm = partial(pyg.InstanceNorm, track_running_stats=True, affine=True)

MODELS: dict[str, Callable[[], nn.Module]] = {
    'SAGE': lambda: _net(pyg.SAGEConv),
    'SAGE, BatchNorm1d': lambda: _net(pyg.SAGEConv, nn.BatchNorm1d),
    'SAGE, BatchNorm momentum None': lambda: _net(pyg.SAGEConv, _without_momentum),
    'SAGE, InstanceNorm': lambda: _net(pyg.SAGEConv, _instance_norm),
    'GAT': lambda: _net(pyg.GATConv),
    'GCN': lambda: _net(pyg.GCNConv),
    'GIN, BatchNorm1d': lambda: _net(_gin, nn.BatchNorm1d),
    'GraphSAGE': lambda: pyg.GraphSAGE(6, 8, 2, 3, norm='BatchNorm'),
}

SEEDS: dict[int, list[Seeds]] = {
    2: [[[0, 5, 9], [17]], [[3], []], [[1, 2, 30], [8, 21, 22, 39]]],
    3: [[[0, 5], [9, 17, 20], []], [[1, 39], [], [7, 8]], [[4], [11, 12], [3, 14, 15]]],
    4: [[[0], [5, 9], [17], [30, 31]], [[1, 2], [], [], [35]], [[3], [4], [6], [7]]],
}
"""By world size the seeds of every step; some ranks have none."""


def _model(name: str) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name]().double()


def _losses(model: nn.Module, batch: Data) -> Tensor:
    out = model(batch.x, batch.edge_index)[: batch.batch_size]
    return F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')


@pytest.mark.parametrize(
    'full', [True, pytest.param(False, marks=pytest.mark.slow)], ids=['and full batches', 'batches']
)
@pytest.mark.parametrize('name', few(MODELS))
@pytest.mark.parametrize(
    'ranks', [(3,), *(pytest.param((n,), marks=pytest.mark.slow) for n in (2, 4))]
)
@as_one_process(bits=True)
def test_training_on_batches_and_exact_evaluation(
    data: Any, wrap: Wrap, name: str, ranks: tuple[int], full: bool
) -> Any:
    """Gradients, weights and running statistics of every step, and then outputs of the whole.

    With `full` a step on the whole graph follows each on batches.
    """
    model, graph = wrap(_model(name)), small_graph()

    def of_graph() -> Tensor:
        out = model(data.x, data.edge_index)[data.train_mask]
        return F.cross_entropy(out, data.y[data.train_mask])

    losses: list[Callable[[], Tensor]] = []
    for seeds in SEEDS[ranks[0]]:
        losses.append(partial(mean_loss, model, seeds, partial(batch_of, graph), _losses, wrap))
        losses += [of_graph] if full else []
    found = _trained(model, losses)
    model.eval()
    return found, model(data.x, data.edge_index).detach()


@as_one_process(ranks=(2,), bits=True, tolerance=1e-12)
def test_a_rank_whose_losses_depend_on_nothing(data: Any, wrap: Wrap) -> list[Any]:
    """The losses of a rank without seeds are a plain tensor: they depend on no model."""
    model, seeds = wrap(_model('SAGE, BatchNorm1d')), [[1, 2, 3], []]

    def losses(model: nn.Module, batch: Data) -> Tensor:
        found = _losses(model, batch)
        return found if batch.batch_size else torch.zeros(0, dtype=torch.float64)

    batch = partial(batch_of, small_graph())
    return _trained(model, [partial(mean_loss, model, seeds, batch, losses, wrap)])


def _accumulated(graph: Data, seeds: list[Seeds]) -> Any:
    model = DistributedDataParallel(_model('SAGE, BatchNorm1d'))
    for i, of_ranks in enumerate(seeds):
        with model.no_sync() if i + 1 < len(seeds) else nullcontext():
            batch = batch_of(graph, torch.tensor(of_ranks[rank()], dtype=torch.int64))
            mean_of_batches(_losses(model, batch)).backward()
    return [p.grad for p in model.module.parameters()], model.module.state_dict()


def test_accumulated_gradients():
    """Two batches, of which one rank has only one: a rank's statistics are those after both."""
    graph, seeds = small_graph(), [[[0, 5], [9, 17, 20], []], [[1, 39], [21], [7, 8]]]
    results = run_as_threads(_accumulated, 3, graph, seeds)
    model, ranks = _model('SAGE, BatchNorm1d'), []
    for r in range(3):
        own = copy.deepcopy(model)
        for of_ranks in seeds:
            if of_ranks[r]:
                losses = _losses(own, batch_of(graph, torch.tensor(of_ranks[r])))
                (losses.sum() / sum(map(len, of_ranks))).backward()
        ranks.append(own)
    for gradients, state in results:
        for found, *given in zip(gradients, *(own.parameters() for own in ranks), strict=True):
            assert_close(found, sum(p.grad for p in given), tolerance=1e-10)
        for name in ('module_0.running_mean', 'module_2.running_var'):
            want = torch.stack([own.state_dict()[name] for own in ranks]).mean(0)
            assert_close(state[name], want)
            assert torch.equal(state[name], results[0][1][name])
        assert int(state['module_0.num_batches_tracked']) == 2  # (2 + 2 + 1) / 3, rounded


@on_threads(3)
def test_a_step_without_any_seeds():
    model = DistributedDataParallel(_model('GIN, BatchNorm1d'))
    before = {name: t.clone() for name, t in model.module.state_dict().items()}
    batch = batch_of(small_graph(), torch.empty(0, dtype=torch.int64))
    loss = mean_of_batches(_losses(model, batch))
    loss.backward()
    assert loss == 0
    assert not any(gradient(p).any() for p in model.parameters())
    assert all(torch.equal(model.module.state_dict()[name], t) for name, t in before.items())


@on_ranks(2)
def test_collectives_of_a_step(data):
    """Of a step on a batch, of an evaluation of one, and of the whole graph."""
    batch = batch_of(small_graph(), torch.tensor([rank(), 7]))
    model = DistributedDataParallel(_model('SAGE, BatchNorm1d'))
    for training in (True, False):
        with counted() as forward:
            losses = _losses(model.train(training), batch)
        with counted() as mean:
            loss = mean_of_batches(losses)
        with counted() as backward:
            loss.backward()
        # Before the gradients goes a small message.
        assert (forward.others, mean.others, backward.others) == (0, 1, 2)
    with counted() as whole:
        model(data.x, data.edge_index)
    assert whole.receives  # the convs exchange rows


# Types of nodes, and tables of nodes


class Hetero(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.first = pyg.HeteroConv({rel: kind((-1, -1), 8) for rel in METADATA[1]})
        norm = partial(pyg.BatchNorm, allow_single_element=True)
        self.norms = nn.ModuleDict({name: norm(8) for name in METADATA[0]})
        self.second = pyg.HeteroConv({rel: kind((-1, -1), 3) for rel in METADATA[1]})

    def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
        h = self.first(x, edge_index)
        h = {name: self.norms[name](rows).relu() for name, rows in h.items()}
        return self.second(h, edge_index)['paper']


def _hetero_inputs(data: HeteroData) -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    x = {name: data[name].x for name in ('paper', 'author')}
    x['term'] = torch.ones(data['term'].num_nodes, 2, dtype=torch.float64)
    return x, {rel: data[rel].edge_index for rel in METADATA[1]}


def _hetero_losses(model: nn.Module, batch: HeteroData) -> Tensor:
    size = batch['paper'].batch_size
    out = model(*_hetero_inputs(batch))[:size]
    return F.cross_entropy(out, batch['paper'].y[:size], reduction='none')


def _gat(i: Any, o: int) -> nn.Module:
    return pyg.GATConv(i, o, add_self_loops=False)


@pytest.mark.parametrize('kind', [pyg.SAGEConv, _gat], ids=['SAGE', 'GAT'])
@as_one_process(graph=hetero_graph, cut='random', bits=True)
def test_heterogeneous_batches_and_exact_evaluation(
    data: Any, wrap: Wrap, kind: Callable[..., nn.Module]
) -> Any:
    """A type with one row counts as none."""
    plain = Hetero(kind).double().eval()
    with torch.no_grad():
        plain(*_hetero_inputs(hetero_graph()))
    model = wrap(plain.train())
    batch = partial(hetero_batch_of, hetero_graph(), 'paper')
    steps = [[[0, 3, 4], [], [9]], [[1], [5, 6], [30]]]
    found = _trained(
        model, [partial(mean_loss, model, each, batch, _hetero_losses, wrap) for each in steps]
    )
    model.eval()
    return [state for _, _, state in found], model(*_hetero_inputs(data)).detach()


EMBEDDED = [[[1, 2], [], [9, 30]], [[4], [7], [36]]]


@pytest.mark.parametrize('sparse', [False, True], ids=['dense', 'sparse'])
@as_one_process(tolerance=1e-9)
def test_rows_of_an_embedding_by_batch(data: Any, wrap: Wrap, sparse: bool) -> Tensor:
    """Two steps; Adam's moments of rows that no batch asks for stay as they are if it is sparse."""
    graph, model = small_graph(), wrap(_model('SAGE'))
    table: Any = NodeEmbedding(data, 6, seed=1, sparse=sparse).double()
    if wrap is itself:
        rows = table.weight.detach().clone()
        table = nn.Embedding.from_pretrained(rows, freeze=False, sparse=sparse)
    kind = torch.optim.SparseAdam if sparse else torch.optim.Adam
    optimizer = kind(table.parameters(), lr=0.1, eps=1e-3)

    def looked_up(seeds: Tensor) -> Data:
        batch = batch_of(graph, seeds)
        batch.x = table(batch.n_id)
        return batch

    before = table.weight.detach().clone()
    for seeds in EMBEDDED:
        optimizer.zero_grad()
        mean_loss(model, seeds, looked_up, _losses, wrap).backward()
        optimizer.step()
    assert not torch.equal(before, table.weight)
    return table.weight.detach()
