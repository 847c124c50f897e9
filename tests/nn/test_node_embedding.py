"""Node embeddings on their owners: values and gradients are those of one table on one process."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import alike
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from alike import Wrap, as_one_process, assert_alike, assert_same, cut_of, itself
from copied_modules import copied
from few import few
from hetero_graphs import assignment, hetero_graph
from on_ranks import on_ranks
from ranks import run_as_threads, run_ranks
from small_graphs import ASSIGNMENTS, assert_all_raise, assert_close, attempt, small_graph
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, HGTConv, SAGEConv

import pyg_sar
from pyg_sar import NodeEmbedding
from pyg_sar.comm.ranks import rank

DIM = 5


class Net(nn.Module):
    """A table of nodes, features beside it, two convs and a norm."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = table
        # Without a bias: before a norm its gradient is rounding alone.
        self.first = SAGEConv(DIM + 6, 8, bias=False)
        self.norm = nn.BatchNorm1d(8)
        self.second = GATConv(8, 3)

    def forward(self, data: Any) -> Tensor:
        x = torch.cat([self.table(data.n_id), data.x], dim=1)
        return self.second(self.norm(self.first(x, data.edge_index)).relu(), data.edge_index)


class Run:
    """One process with ``torch.nn.Embedding``, or a rank with its rows; the same program."""

    def __init__(self, data: Any, wrap: Wrap, *, sparse: bool = False) -> None:
        self.data, self.wrap, self.is_plain = data, wrap, wrap is itself
        self.table: Any = NodeEmbedding(data, DIM, seed=7, sparse=sparse)
        if self.is_plain:
            rows = pyg_sar.gather(self.table.weight.detach())
            self.table = nn.Embedding.from_pretrained(rows, freeze=False, sparse=sparse)
            data.n_id = torch.arange(data.num_nodes)
        self.inner = Net(self.table).double()
        self.model: Any = wrap(self.inner)
        self.losses: list[float] = []

    @property
    def shared(self) -> list[nn.Parameter]:
        return [p for p in self.inner.parameters() if p is not self.table.weight]

    def loss(self) -> Tensor:
        mask = self.data.train_mask
        loss = F.cross_entropy(self.model(self.data)[mask], self.data.y[mask])
        self.losses.append(loss.item())
        return loss

    def train(self, *optimizers: Any, clip: Callable[[], Any] = lambda: None) -> None:
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            self.loss().backward()
            clip()
            for optimizer in optimizers:
                optimizer.step()

    def optimizer(self, kind: str = 'Adam', lr: float = 0.05, **options: Any) -> Any:
        return getattr(torch.optim, kind)(self.inner.parameters(), lr=lr, **options)

    def found(self) -> dict[str, Any]:
        gradient = self.table.weight.grad
        return {
            'losses': self.losses,
            'shared': [(p, p.grad) for p in self.shared],
            'rows': self.table.weight,
            'gradient': gradient.to_dense() if gradient is not None else None,
        }


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ('Adam', {'weight_decay': 0.1}),
    ('AdamW', {'foreach': True, 'amsgrad': True}),
    ('Adam', {'fused': True}),
    ('SGD', {'momentum': 0.9, 'nesterov': True}),
    *((name, {}) for name in ('Adagrad', 'Adadelta', 'RMSprop', 'NAdam', 'RAdam', 'Adamax')),
    *((name, {'foreach': True}) for name in ('ASGD', 'Rprop')),
]


def optimizers(run: Run) -> None:
    for kind, options in OPTIMIZERS:
        run.train(run.optimizer(kind, 0.01, **options))


def sparse_optimizers(run: Run) -> None:
    run.train(run.optimizer('SGD', 0.5))
    table = torch.optim.SparseAdam([run.table.weight], lr=0.05)
    run.train(table, torch.optim.Adam(run.shared, lr=0.05))


def sparse_rows_of_some(run: Run) -> None:
    """Rows that nothing looks up keep their values and their state."""
    table = torch.optim.SparseAdam([run.table.weight], lr=0.05)
    for step in range(4):
        table.zero_grad()
        ids = run.data.n_id[run.data.y == step % 3]
        (run.table(ids).square() * 0.3).sin().sum().backward()
        run.loss()
        table.step()


def clipped(run: Run) -> None:
    for options in ({}, {'foreach': True}, {'norm_type': 1.0}, {'norm_type': float('inf')}):

        def clip(options: Any = options) -> None:
            parameters = run.inner.parameters()
            norm = nn.utils.clip_grad_norm_(parameters, 0.02, error_if_nonfinite=True, **options)
            run.losses.append(norm.item())

        run.train(run.optimizer('SGD', 0.5), clip=clip)


def clipped_by_hand(run: Run) -> None:
    def clip() -> None:
        gradients = [p.grad.data for p in run.inner.parameters()]
        total = sum(float(g.norm(2)) ** 2 for g in gradients) ** 0.5
        again = sum(g.detach().pow(2).sum() for g in gradients).sqrt()
        largest = max(g.abs().max() for g in gradients)
        mean = sum(g.abs().mean() for g in gradients)
        run.losses += [total, again.item(), largest.item(), mean.item()]
        assert all(g.isfinite().all() for g in gradients)
        for g in gradients:
            g.mul_(0.02 / total)

    run.train(run.optimizer(lr=0.1), clip=clip)


def accumulated_without_averages(run: Run) -> None:
    for _ in range(2):
        for _ in range(2):
            with nullcontext() if run.is_plain else run.model.no_sync():
                run.loss().backward()
        run.loss().backward()


def optimizer_in_backward(run: Run) -> None:
    for p in run.inner.parameters():
        optimizer = torch.optim.Adam([p], lr=0.05)

        def step(p: Tensor, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        run.loss().backward()


def penalty_of_the_rows(run: Run) -> None:
    for _ in range(2):
        rows = run.table(run.data.n_id)
        (run.loss() + 0.1 * rows.square().sum()).backward()
        (rows.detach() * run.table(run.data.n_id)).sum().backward()


def frozen(run: Run) -> None:
    run.table.weight.requires_grad_(False)
    run.loss().backward()
    run.table.weight.requires_grad_(True)
    run.loss().backward()


def beside_the_model(run: Run) -> None:
    """Its rows go into the model, and nobody registers them with it."""

    class Inputs(nn.Module):
        def forward(self, n_id: Tensor) -> Tensor:
            return rows

    table, rows = run.table, run.table(run.data.n_id)
    run.inner.table = Inputs()
    run.model = run.wrap(run.inner)
    run.loss().backward()
    run.inner.table = table


def averaged_weights(run: Run) -> None:
    for multi in (None, torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)):
        average = torch.optim.swa_utils.AveragedModel(run.inner, multi_avg_fn=multi)
        optimizer = run.optimizer('SGD', 0.5)
        for _ in range(2):
            optimizer.zero_grad()
            run.loss().backward()
            optimizer.step()
            average.update_parameters(run.inner)
        run.inner.load_state_dict(average.module.state_dict())


def _scaled(run: Run, parameters: Iterable[Tensor], loss_of: Callable[[], Tensor]) -> None:
    """One rank alone meets infinity, in the second step."""
    scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of()).backward()
        if step == 1 and 5 in pyg_sar.local(run.data.n_id):
            run.table.weight.grad.mul_(float('inf'))
        scaler.step(optimizer)
        scaler.update()
        run.losses.append(scaler.get_scale())


def scaled_gradients(run: Run) -> None:
    _scaled(run, run.inner.parameters(), run.loss)


def sparse_scaled_gradients(run: Run) -> None:
    rows = [run.table.weight]
    _scaled(run, rows, lambda: (run.table(run.data.n_id) * 0.3).sin().sum())
    run.loss()


def copied_and_pickled(run: Run) -> None:
    for way in ('deepcopy', 'torch.save'):
        run.loss().backward()
        run.inner.zero_grad()
        run.model = copied(run.model, way)
        run.inner = run.model if run.is_plain else run.model.module
        run.table = run.inner.table
        run.train(run.optimizer())


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def optimizer_through_a_file(run: Run) -> None:
    """What torch has loaded is rows of all ranks again after a step."""
    optimizer = run.optimizer()
    run.train(optimizer)
    state = _through_a_file(optimizer.state_dict())
    optimizer = run.optimizer()
    optimizer.load_state_dict(state)
    run.train(optimizer)
    run.losses.append(optimizer.state[run.table.weight]['exp_avg'].norm().item())


def rows_of_any_nodes(run: Run) -> None:
    ids = torch.tensor([[3, 17, 5, 39], [0, 0, 8, 21]])
    z = run.table(ids) if run.is_plain else run.table()[ids]
    loss = (z[0] * z[1]).sum().sin()
    loss.backward()
    run.losses.append(loss.item())


_ALL = [
    *(optimizers, sparse_optimizers, sparse_rows_of_some, clipped, clipped_by_hand),
    *(accumulated_without_averages, optimizer_in_backward, penalty_of_the_rows, frozen),
    *(beside_the_model, averaged_weights, scaled_gradients, sparse_scaled_gradients),
    *(copied_and_pickled, optimizer_through_a_file, rows_of_any_nodes),
]
PROGRAMS: dict[str, Callable[[Run], None]] = {each.__name__: each for each in _ALL}


def _program(data: Any, wrap: Wrap, name: str) -> dict[str, Any]:
    run = Run(data, wrap, sparse=name.startswith('sparse'))
    PROGRAMS[name](run)
    return run.found()


@pytest.mark.parametrize(
    'ranks', [3, *(pytest.param(p, marks=pytest.mark.slow) for p in (1, 2, 4))]
)
@pytest.mark.parametrize('name', few(PROGRAMS, every=4))
def test_program(name: str, ranks: int) -> None:
    parts = 4 if ranks < 3 else ranks
    assert_alike(_program, name, cut=ASSIGNMENTS[ranks % 3], ranks=(ranks,), parts=parts)


# Checkpoints


def _resumed(
    data: Any, wrap: Wrap, root: str, num_steps: int, saves: int, sparse: bool
) -> dict[str, Any]:
    """Some steps from the newest checkpoint on, or from the start without one."""
    run = Run(data, wrap, sparse=sparse)
    if sparse:
        optimizer: Any = torch.optim.SparseAdam([run.table.weight], lr=0.05)
    else:
        optimizer = run.optimizer(amsgrad=True)
    norm = 0.0
    if root and pyg_sar.load_checkpoint(root, run.model, optimizer) is not None:
        with torch.no_grad():  # the state is rows of all ranks again
            norm = optimizer.state[run.table.weight]['exp_avg'].norm().item()
    for _ in range(num_steps):
        run.inner.zero_grad()
        run.loss().backward()
        optimizer.step()
    if saves:
        pyg_sar.save_checkpoint(root, run.model, optimizer, epoch=saves)
    return {**run.found(), 'losses': run.losses[-2:], 'norm': norm}


@pytest.mark.parametrize('sparse', few([False, True]))
def test_training_goes_on_on_any_number_of_ranks(sparse: bool, tmp_path: Path) -> None:
    root = str(tmp_path / 'run')
    parts = {p: cut_of(small_graph, p, ASSIGNMENTS[p % 3]) for p in (2, 3, 4)}
    want = alike.on_whole_graph(_resumed, small_graph, '', 9, 0, sparse)
    alike.on_ranks(_resumed, 3, parts[3], root, 2, 1, sparse)
    alike.on_ranks(_resumed, 2, parts[4], root, 2, 2, sparse)
    alike.on_whole_graph(_resumed, small_graph, root, 1, 3, sparse)  # torch.nn.Embedding
    alike.on_ranks(_resumed, 4, parts[4], root, 2, 4, sparse)
    results = alike.on_ranks(_resumed, 2, parts[2], root, 2, 5, sparse)
    norms = [found.pop('norm') for found in results]
    assert norms == [norms[0]] * 2
    assert norms[0] > 0
    del want['norm']
    for found in results:
        assert_same(found, want, tolerance=1e-10)
    rows = np.load(Path(root) / 'epoch-000005' / 'model.table.weight.npy')  # of other programs
    assert_close(torch.from_numpy(rows), want['rows'], tolerance=1e-10)


@on_ranks(by='threads')
def test_a_checkpoint_of_other_rows_is_refused(data, tmp_path):
    root = str(tmp_path)
    _resumed(data, pyg_sar.DistributedDataParallel, root, 1, 1, False)
    run = Run(data, pyg_sar.DistributedDataParallel)
    wider, plain = NodeEmbedding(data, DIM + 1), nn.Embedding(len(pyg_sar.local(data.n_id)), DIM)
    expected = r"expected 'table.weight' of the model.*\[40, 6\] torch.float64 "
    got = r'\(got \[40, 5\] torch.float64\)'
    for table, words in ((wider, expected + got), (plain, got)):
        run.inner.table = table.double()
        with pytest.raises(ValueError, match=words):
            pyg_sar.load_checkpoint(root, run.inner, run.optimizer())


@on_ranks(2, by='threads')
def test_a_state_without_rows_is_not_saved(data, tmp_path):
    run = Run(data, pyg_sar.DistributedDataParallel)
    optimizer = run.optimizer()
    optimizer.state[run.table.weight]['column_means'] = torch.zeros(DIM)
    with pytest.raises(ValueError, match='column_means'):
        pyg_sar.save_checkpoint(str(tmp_path), run.model, optimizer, epoch=1)


# Types of nodes


class Typed(nn.Module):
    """As users write it for the types without features."""

    def __init__(self, table: Callable[[str], nn.Module], metadata: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tables = nn.ModuleDict({name: table(name) for name in metadata[0]})
        self.conv = HGTConv(DIM, 4, metadata)

    def forward(self, n_id_dict: dict[str, Tensor], edge_index_dict: Any) -> dict[str, Tensor]:
        x_dict = {name: table(n_id_dict[name]) for name, table in self.tables.items()}
        return self.conv(x_dict, edge_index_dict)


def _typed(data: Any, wrap: Wrap) -> dict[str, Any]:
    def table(name: str) -> nn.Module:
        own = NodeEmbedding(data[name], DIM, seed=3)
        if wrap is not itself:
            return own
        return nn.Embedding.from_pretrained(pyg_sar.gather(own.weight.detach()), freeze=False)

    plain = Typed(table, data.metadata()).double()
    model: Any = wrap(plain)
    if wrap is itself:
        n_ids = {name: torch.arange(data[name].num_nodes) for name in data.node_types}
    else:
        n_ids = data.n_id_dict
    out = model(n_ids, data.edge_index_dict)
    sum(rows.sin().mean() for rows in out.values() if rows is not None).backward()
    tables = {name: each.weight.grad for name, each in plain.tables.items()}
    return {'tables': tables, 'conv': [p.grad for p in plain.conv.parameters()]}


@pytest.mark.parametrize('ranks', [1, 2, 3])
def test_types_of_nodes(ranks: int, tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(hetero_graph(), 3 * ranks, root, method=assignment(3 * ranks))
    want = alike.on_whole_graph(_typed, hetero_graph)
    for found in alike.on_ranks(_typed, ranks, str(root)):
        assert_same(found, want, tolerance=1e-10)


# Values at first


def _values(data: Any, wrap: Wrap, seed: int | None) -> list[Any]:
    # Ranks need not be seeded alike.
    torch.manual_seed(0 if wrap is itself else rank())
    first, second = (NodeEmbedding(data, DIM, seed=seed) for _ in range(2))
    before = first().detach().clone()
    first.reset_parameters()
    return [before, second().detach(), first().detach()]


@pytest.mark.parametrize('seed', [None, 5])
def test_values_are_those_of_the_node(seed: int | None) -> None:
    for ranks, parts in ((1, 3), (2, 4), (3, 3), (4, 4)):
        assert_alike(_values, seed, ranks=(ranks,), parts=parts, tolerance=0)
    first, second, again = _values(small_graph(), itself, seed)
    assert torch.equal(first, second) == (seed is not None)
    assert torch.equal(first, again) == (seed is not None)


# What is computed of the weight itself, and what is refused


def _step(optimizer: Callable[[Any], Any]) -> Callable[[Run], Any]:
    def step(run: Run) -> None:
        run.loss().backward()
        made = optimizer(run.inner.parameters())
        made.step(run.loss if isinstance(made, torch.optim.LBFGS) else None)

    return step


OF_THE_WEIGHT: dict[str, Callable[[Run], Any]] = {
    'penalty': lambda r: _of_loss(r, r.table.weight.square().sum()),
    'noise': lambda r: torch.randn_like(r.table.weight),
    'xavier': lambda r: nn.init.xavier_uniform_(r.table.weight),
    'a vector': lambda r: nn.utils.parameters_to_vector(r.inner.parameters()),
    'autograd.grad': lambda r: torch.autograd.grad(r.table.weight.sin().sum(), r.table.weight)[0],
    'LBFGS': _step(partial(torch.optim.LBFGS, max_iter=5)),
    'Adafactor': _step(torch.optim.Adafactor),
    'lists': lambda r: _lists(r.table.weight.detach()),
    'sources of edges': lambda r: _of_loss(r, r.table(r.data.edge_index[0]).sin().mean()),
    'pairs of edges': lambda r: _of_loss(r, r.table(r.data.edge_index).prod(0).mean()),
    'ids that rows compute': lambda r: _of_loss(r, r.table(r.data.y * 9).square().mean()),
}


def _of_loss(run: Run, penalty: Tensor) -> Tensor:
    (run.loss() + penalty).backward()
    return penalty


def _lists(weight: Tensor) -> Tensor:
    one, other = torch.ones(3, dtype=weight.dtype), weight.cos()
    sums = torch._foreach_add([one, weight], [one, other], alpha=0.5)
    torch._foreach_lerp_(sums, [one, other], 0.3)
    torch._foreach_mul_(sums, [2.0, 3.0])
    return sums[1] * torch.stack(torch._foreach_norm(sums)).sum()


@pytest.mark.parametrize('name', OF_THE_WEIGHT)
@as_one_process(ranks=(1, 2, 3))
def test_what_is_computed_of_the_weight(data: Any, wrap: Wrap, name: str) -> list[Any]:
    run = Run(data, wrap)
    torch.manual_seed(3)
    out = OF_THE_WEIGHT[name](run)
    return [out, run.table.weight, run.table.weight.grad]


REFUSED: dict[str, tuple[Callable[[Run], Any], str]] = {
    'a new draw': (lambda r: nn.init.normal_(r.table.weight), "'normal'"),
    'a list of the whole': (
        lambda r: torch._foreach_add_([torch.zeros(40, DIM)], [r.table.weight.detach()]),
        'foreach_add',
    ),
    'local ids of a gradient': (lambda r: _sparse_gradient(r)._indices(), 'indices'),
}


def _sparse_gradient(run: Run) -> Any:
    table = NodeEmbedding(run.data, DIM, sparse=True)
    table().sum().backward()
    return table.weight.grad


@pytest.mark.parametrize('world_size', [1, 2])
@pytest.mark.parametrize('name', REFUSED)
@on_ranks(num_parts=2, by='threads')
def test_what_sees_the_rows_of_one_rank_is_refused(data, name, world_size):
    compute, words = REFUSED[name]
    run = Run(data, pyg_sar.DistributedDataParallel)
    with nullcontext() if world_size == 1 else pytest.raises(ValueError, match=words):
        compute(run)


WRONG: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda data: NodeEmbedding(small_graph(), DIM), ValueError, 'load_shard'),
    (lambda data: NodeEmbedding(hetero_graph(), DIM), ValueError, r"data\['author'\]"),
    (lambda data: NodeEmbedding(data, DIM + rank()), ValueError, 'embedding_dim'),
    (lambda data: NodeEmbedding(data, 0), ValueError, 'embedding_dim'),
    (lambda data: NodeEmbedding(_of_rank_0(data), DIM), ValueError, 'one rank'),
    (lambda data: _replaced(data)(), TypeError, 'weight'),
]


def _of_rank_0(data: Any) -> Any:
    return pyg_sar.load_shard(data.edge_index.handle.shard.root, 0)


def _replaced(data: Any) -> NodeEmbedding:
    table = NodeEmbedding(data, DIM)
    table.weight = nn.Parameter(pyg_sar.local(table.weight.detach()))
    return table


@on_ranks(2, by='threads')
def test_what_is_no_part_of_a_graph(data):
    for make, error, words in WRONG:
        with pytest.raises(error, match=words):
            make(data)


# Processes


def _in_processes(root: str) -> Any:
    run = Run(pyg_sar.load_shard(root), pyg_sar.DistributedDataParallel)
    PROGRAMS['clipped'](run)
    state = _through_a_file(run.model.state_dict())
    assert type(state['table.weight']) is Tensor
    run.model.load_state_dict(state)
    reduced = attempt(dist.all_reduce, run.table.weight.grad)
    found = {name: alike.whole(leaf) for name, leaf in alike.leaves(run.found()).items()}
    return found, reduced, attempt(_in_torchs_own, run)


def _in_torchs_own(run: Run) -> None:
    """Of a type of as many nodes on every rank, as torch finds unequal ones itself."""
    run.inner.table = NodeEmbedding(Data(n_id=torch.arange(3) + 3 * rank()), DIM)
    model = nn.parallel.DistributedDataParallel(pyg_sar.DistributedDataParallel(run.inner))
    model(run.data)


def test_in_processes() -> None:
    want = alike.on_whole_graph(_program, small_graph, 'clipped')
    results = run_ranks(_in_processes, 2, cut_of(small_graph, 2))
    for found, _, _ in results:
        assert_same(found, want, tolerance=1e-10)
    assert_all_raise([each for _, each, _ in results], 'ValueError', 'all_reduce')
    assert_all_raise([each for _, _, each in results], 'ValueError', 'DistributedDataParallel')


def _loads_other_rows() -> None:
    own = torch.tensor([0, 1]) + 2 * rank()
    table, other = (NodeEmbedding(Data(n_id=ids), DIM) for ids in (own, own.flip(0)))
    state = _through_a_file(table.state_dict())
    with pytest.raises(RuntimeError, match='load_checkpoint'):
        other.load_state_dict(state)
    again = NodeEmbedding(Data(n_id=own), DIM)
    for assign in (False, True):
        again.load_state_dict(state, assign=assign)
        assert torch.equal(again.weight, table.weight)
        assert torch.equal(again(), table())
    rows = nn.Embedding(4, DIM)
    other.load_state_dict(rows.state_dict())
    assert torch.equal(other(), rows.weight[own.flip(0)])


def test_the_rows_of_other_nodes_are_not_loaded() -> None:
    run_as_threads(_loads_other_rows, 2)
    table, other = (NodeEmbedding(Data(n_id=torch.tensor(ids)), DIM) for ids in ([0, 1], [1, 0]))
    other.load_state_dict(table.state_dict())  # one process has all rows, by id
    assert torch.equal(other(), table().flip(0))
