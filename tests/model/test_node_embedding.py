"""Node embeddings on their owners: values and gradients are those of one table on one process."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ranks import run_as_threads
from small_graphs import (
    ASSIGNMENTS,
    assemble,
    assert_close,
    cut,
    small_graph,
)
from torch import Tensor, nn
from torch_geometric.nn import GATConv, SAGEConv

import pyg_sar
from pyg_sar import NodeEmbedding

DIM = 5


class Net(nn.Module):
    """A table of nodes, features beside it, two convs and a norm."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = table
        self.first = SAGEConv(
            DIM + 6, 8, bias=False
        )  # before a norm its gradient is rounding alone
        self.norm = nn.BatchNorm1d(8)
        self.second = GATConv(8, 3)

    def forward(self, data: Any) -> Tensor:
        x = torch.cat([self.table(data.n_id), data.x], dim=1)
        return self.second(self.norm(self.first(x, data.edge_index)).relu(), data.edge_index)


class Run:
    """One process with ``torch.nn.Embedding``, or a rank with its rows; the same program."""

    def __init__(self, data: Any, *, sparse: bool = False, plain: bool = False) -> None:
        self.data, self.plain = data, plain
        self.table: Any = NodeEmbedding(data, DIM, seed=7, sparse=sparse)
        if plain:
            rows = self.table.weight.detach().as_subclass(Tensor)
            self.table = nn.Embedding.from_pretrained(rows, freeze=False, sparse=sparse)
            data.n_id = torch.arange(data.num_nodes)
        self.inner = Net(self.table).double()
        self.model: Any = self.inner if plain else pyg_sar.DistributedDataParallel(self.inner)
        self.losses: list[float] = []

    @property
    def shared(self) -> list[nn.Parameter]:
        return [p for p in self.inner.parameters() if p is not self.table.weight]

    def mean(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.plain:
            return (values if mask is None else values[mask]).mean()
        return pyg_sar.global_mean(values, mask)

    def sum(self, rows: Tensor) -> Tensor:
        return rows.sum() if self.plain else pyg_sar.global_sum(rows, dim=0).sum()

    def loss(self) -> Tensor:
        each = F.cross_entropy(self.model(self.data), self.data.y, reduction='none')
        loss = self.mean(each, self.data.train_mask)
        self.losses.append(loss.item())
        return loss

    def train(self, optimizer: Any, clip: Callable[[], Any] = lambda: None) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            self.loss().backward()
            clip()
            optimizer.step()

    def found(self) -> dict[str, Any]:
        def plain(t: Tensor | None) -> Tensor | None:
            if t is None:
                return None
            t = t.to_dense() if t.is_sparse else t
            return t.detach().as_subclass(Tensor)

        return {
            'losses': torch.tensor(self.losses, dtype=torch.float64),
            'shared': [plain(p) for p in self.shared],
            'gradients': [plain(p.grad) for p in self.shared],
            'n_id': self.data.n_id,
            'rows': plain(self.table.weight),
            'gradient': plain(self.table.weight.grad),
        }


Program = Callable[[Run], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@program
def adam(run: Run) -> None:
    run.train(torch.optim.Adam(run.inner.parameters(), lr=0.05, weight_decay=0.1))


@program
def adamw_on_lists(run: Run) -> None:
    run.train(torch.optim.AdamW(run.inner.parameters(), lr=0.05, foreach=True, amsgrad=True))


@program
def adam_fused(run: Run) -> None:
    run.train(torch.optim.Adam(run.inner.parameters(), lr=0.05, fused=True))


@program
def sgd(run: Run) -> None:
    optimizer = torch.optim.SGD(run.inner.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    run.train(optimizer)


@program
def other_optimizers(run: Run) -> None:
    for kind in ('Adagrad', 'Adadelta', 'RMSprop', 'NAdam', 'RAdam', 'Adamax', 'ASGD', 'Rprop'):
        for on_lists in (False, True):
            optimizer = getattr(torch.optim, kind)
            run.train(optimizer(run.inner.parameters(), lr=0.01, foreach=on_lists))


@program
def sparse_adam(run: Run) -> None:
    class Both:
        def __init__(self) -> None:
            table = torch.optim.SparseAdam([run.table.weight], lr=0.05)
            self.each = table, torch.optim.Adam(run.shared, lr=0.05)

        def zero_grad(self) -> None:
            [optimizer.zero_grad() for optimizer in self.each]

        def step(self) -> None:
            [optimizer.step() for optimizer in self.each]

    run.train(Both())


@program
def sparse_rows_of_some(run: Run) -> None:
    """Rows that nothing looks up keep their values and their state."""
    table = torch.optim.SparseAdam([run.table.weight], lr=0.05)
    for step in range(4):
        table.zero_grad()
        ids = run.data.n_id[run.data.y == step % 3]
        run.sum((run.table(ids.flip(0)).square() * 0.3).sin()).backward()
        run.loss()
        table.step()


@program
def sparse_sgd(run: Run) -> None:
    run.train(torch.optim.SGD(run.inner.parameters(), lr=0.5))


@program
def clipped(run: Run) -> None:
    for options in ({}, {'foreach': True}, {'norm_type': 1.0}, {'norm_type': float('inf')}):
        optimizer = torch.optim.SGD(run.inner.parameters(), lr=0.5)

        def clip(options: Any = options) -> None:
            parameters = run.inner.parameters()
            norm = nn.utils.clip_grad_norm_(parameters, 0.02, error_if_nonfinite=True, **options)
            run.losses.append(norm.item())

        run.train(optimizer, clip)


@program
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

    run.train(torch.optim.Adam(run.inner.parameters(), lr=0.1), clip)


@program
def clipped_by_value(run: Run) -> None:
    def clip() -> None:
        nn.utils.clip_grad_value_(run.inner.parameters(), 0.01)

    run.train(torch.optim.SGD(run.inner.parameters(), lr=0.5), clip)


@program
def own_layerwise_optimizer(run: Run) -> None:
    """LARS and LAMB: a step of the size of the weight's norm."""
    moments = {p: torch.zeros(p.shape, dtype=p.dtype) for p in run.inner.parameters()}
    for _ in range(3):
        run.inner.zero_grad(set_to_none=False)
        run.loss().backward()
        with torch.no_grad():
            for p, m in moments.items():
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                p.sub_(m * (0.1 * p.norm() / (m.norm() + 1e-3)))


@program
def accumulated(run: Run) -> None:
    optimizer = torch.optim.Adam(run.inner.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        run.loss().backward()
        (0.5 * run.loss()).backward()
        optimizer.step()


@program
def accumulated_without_averages(run: Run) -> None:
    for _ in range(2):
        for _ in range(2):
            with nullcontext() if run.plain else run.model.no_sync():
                run.loss().backward()
        run.loss().backward()


@program
def optimizer_in_backward(run: Run) -> None:
    for p in run.inner.parameters():
        optimizer = torch.optim.Adam([p], lr=0.05)

        def step(p: Tensor, optimizer: Any = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        run.loss().backward()


@program
def penalty_of_the_rows(run: Run) -> None:
    for _ in range(2):
        rows = run.table(run.data.n_id)
        (run.loss() + 0.1 * run.sum(rows.square())).backward()
        run.sum(rows.detach() * run.table(run.data.n_id)).backward()


@program
def frozen(run: Run) -> None:
    run.table.weight.requires_grad_(False)
    run.loss().backward()
    run.table.weight.requires_grad_(True)
    run.loss().backward()


@program
def beside_the_model(run: Run) -> None:
    """Its rows go into the model, and nobody registers them with it."""

    class Inputs(nn.Module):
        def forward(self, n_id: Tensor) -> Tensor:
            return rows

    table, rows = run.table, run.table(run.data.n_id)
    run.inner.table = Inputs()
    run.model = run.inner if run.plain else pyg_sar.DistributedDataParallel(run.inner)
    run.loss().backward()
    run.inner.table = table


@program
def averaged_weights(run: Run) -> None:
    for multi in (None, torch.optim.swa_utils.get_ema_multi_avg_fn(0.7)):
        average = torch.optim.swa_utils.AveragedModel(run.inner, multi_avg_fn=multi)
        optimizer = torch.optim.SGD(run.inner.parameters(), lr=0.5)
        for _ in range(2):
            optimizer.zero_grad()
            run.loss().backward()
            optimizer.step()
            average.update_parameters(run.inner)
        run.inner.load_state_dict(average.module.state_dict())


@program
def scaled_gradients(run: Run) -> None:
    scaler = torch.amp.GradScaler('cpu', init_scale=4.0)
    optimizer = torch.optim.SGD(run.inner.parameters(), lr=0.5)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(run.loss()).backward()
        if step == 1 and 5 in run.data.n_id:  # on one rank only
            run.table.weight.grad.mul_(float('inf'))
        scaler.step(optimizer)
        scaler.update()
        run.losses.append(scaler.get_scale())


@program
def copied_and_pickled(run: Run) -> None:
    for copied in (copy.deepcopy, _pickled):
        run.loss().backward()
        run.inner.zero_grad()
        run.model = copied(run.model)
        run.inner = run.model if run.plain else run.model.module
        run.table = run.inner.table
        run.train(torch.optim.Adam(run.inner.parameters(), lr=0.05))


def _pickled(value: Any) -> Any:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _of_ranks(name: str, root: str) -> Any:
    run = Run(pyg_sar.load_shard(root), sparse=name.startswith('sparse'))
    PROGRAMS[name](run)
    return run.found()


def _compare(results: list[Any], want: dict[str, Any]) -> None:
    for found in results:
        for name in ('losses', 'shared', 'gradients'):
            for a, b in zip(found[name], want[name], strict=True):
                assert (a is None) == (b is None), name
                if a is not None:
                    assert_close(a, b, tolerance=1e-10)
    for name in ('rows', 'gradient'):
        if want[name] is not None:
            pieces = [(found['n_id'], found[name]) for found in results]
            assert_close(assemble(pieces, len(want[name])), want[name], tolerance=1e-10)


@pytest.mark.parametrize('ranks', [1, 2, 3, 4])
@pytest.mark.parametrize('name', PROGRAMS)
def test_program(name: str, ranks: int, tmp_path: Path) -> None:
    whole = Run(small_graph(), plain=True, sparse=name.startswith('sparse'))
    PROGRAMS[name](whole)
    kind = ASSIGNMENTS[ranks % 3]
    root = str(cut(small_graph(), 4 if ranks < 3 else ranks, tmp_path / 'parts', kind))
    _compare(run_as_threads(_of_ranks, ranks, name, root), whole.found())


# Checkpoints


def _of_part(parts: str, root: str, *, num_steps: int, saves: int, sparse: bool) -> dict[str, Any]:
    """Some steps from the newest checkpoint on, or by one process from the start."""
    run = Run(pyg_sar.load_shard(parts) if parts else small_graph(), sparse=sparse, plain=not parts)
    return _resumed(run, root, num_steps, saves, sparse)


def _resumed(run: Run, root: str, num_steps: int, saves: int, sparse: bool) -> dict[str, Any]:
    if sparse:
        optimizer: Any = torch.optim.SparseAdam([run.table.weight], lr=0.05)
    else:
        optimizer = torch.optim.Adam(run.inner.parameters(), lr=0.05, amsgrad=True)
    if root:
        if pyg_sar.load_checkpoint(root, run.model, optimizer) is None:
            assert saves == 1
        else:
            with torch.no_grad():  # the state is rows of all ranks again
                state = optimizer.state[run.table.weight]['exp_avg']
                run.losses.append(state.norm().item())
    for _ in range(num_steps):
        run.inner.zero_grad()
        run.loss().backward()
        optimizer.step()
    if saves:
        pyg_sar.save_checkpoint(root, run.model, optimizer, epoch=saves)
    return run.found()


@pytest.mark.parametrize(('sparse', 'piece_bytes'), [(False, 100), (True, 2**24)])
def test_training_goes_on_on_any_number_of_ranks(
    sparse: bool, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('pyg_sar.checkpoint.tables._PIECE_BYTES', piece_bytes)
    root, graph = str(tmp_path / 'run'), small_graph()
    parts = {p: str(cut(graph, p, tmp_path / str(p), ASSIGNMENTS[p % 3])) for p in (2, 3, 4)}
    whole = Run(small_graph(), sparse=sparse, plain=True)
    want = _resumed(whole, '', 9, 0, sparse)
    run_as_threads(_of_part, 3, parts[3], root, num_steps=2, saves=1, sparse=sparse)
    run_as_threads(_of_part, 2, parts[4], root, num_steps=2, saves=2, sparse=sparse)
    _of_part('', root, num_steps=1, saves=3, sparse=sparse)  # torch.nn.Embedding
    run_as_threads(_of_part, 4, parts[4], root, num_steps=2, saves=4, sparse=sparse)
    results = run_as_threads(_of_part, 2, parts[2], root, num_steps=2, saves=5, sparse=sparse)
    norms = [found['losses'][0].item() for found in results]
    assert norms == [norms[0]] * 2
    assert norms[0] > 0
    for found in results:
        assert_close(found['losses'][1:], want['losses'][-2:], tolerance=1e-10)
        found['losses'] = want['losses']
    _compare(results, want)
