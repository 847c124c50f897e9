"""Training programs as users write them, for one process of plain PyG and for ranks alike.

Every program gets a :class:`Run` and leaves gradients behind. A loss is PyG's own, or that of a
rank with its own rows; in one process it is the mean over the ranks of what they would have.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ddp_model import make_model
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GATConv, GCNConv, GroupAddRev, LGConv, SAGEConv

import pyg_sar
from pyg_sar import DistributedDataParallel
from pyg_sar.loader import mean_of_batches

Program = Callable[['Run'], None]
PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


@dataclass
class Run:
    """One process with the whole graph, or a rank with its part.

    Attributes:
        data: The whole graph, or a shard.
        parts: The ids of every rank's nodes.
        rank: The rank; None for the one process.
        models: Whose parameters are compared.
        rows: Tensors with one row per node whose values and gradients are compared.
    """

    data: Any
    parts: list[Tensor]
    rank: int | None
    models: list[torch.nn.Module] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    def ddp(self, model: torch.nn.Module, **options: Any) -> Any:
        """The model, parallel on ranks; its gradients are compared."""
        made = model if self.rank is None else DistributedDataParallel(model, **options)
        self.models.append(made)
        return made

    def inner(self, model: Any) -> Any:
        return model if self.rank is None else model.module

    def own(self, tensor: Tensor) -> Tensor:
        """A leaf with all rows of the graph, whose gradient is compared."""
        rows = tensor if self.rank is None else 0 * self.data.x + tensor
        leaf = rows.detach().clone().requires_grad_()
        self.rows.append(leaf)
        return leaf

    def loss(self, out: Tensor) -> Tensor:
        mask = self.data.train_mask
        return F.cross_entropy(out[mask], self.data.y[mask])

    def mean_of_ranks(self, out: Tensor, of_rank: Callable[[int, Tensor], Tensor]) -> Tensor:
        """What a rank computes with its own rows; in one process the mean of what all would."""
        if self.rank is not None:
            return of_rank(self.rank, pyg_sar.local(out))
        terms = [of_rank(rank, out[ids]) for rank, ids in enumerate(self.parts)]
        return sum(terms[1:], start=terms[0]) / len(terms)

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        return nullcontext() if self.rank is None else model.no_sync()

    @property
    def graph(self) -> tuple[Tensor, Tensor]:
        return self.data.x, self.data.edge_index

    def found(self) -> dict[str, Any]:
        """What is compared."""
        parameters = [p for model in self.models for p in model.parameters()]
        return {
            'parameters': [p.detach() for p in parameters],
            'gradients': [p.grad for p in parameters],
            'rows': [pyg_sar.local((t.detach(), t.grad)) for t in self.rows],
        }


def _penalty(model: torch.nn.Module) -> Tensor:
    return sum(p.square().sum() for p in model.parameters())


# Several backwards, several losses


@program
def two_forwards_then_two_backwards(run: Run) -> None:
    model = run.ddp(make_model())
    first, second = run.loss(model(*run.graph)), run.loss(model(2 * run.data.x, run.graph[1]))
    first.backward()
    second.backward()


# What a loss may be made of


@program
def penalty_of_the_weights_by_itself(run: Run) -> None:
    model = run.ddp(make_model())
    run.loss(model(*run.graph)).backward()
    _penalty(model).backward()


@program
def loss_of_each_rank(run: Run) -> None:
    """A local mean, as in any data-parallel program."""
    out = run.ddp(make_model())(*run.graph)
    run.mean_of_ranks(out, lambda rank, own: (rank + 1) * own.square().mean()).backward()


@program
def whole_and_own_factors(run: Run) -> None:
    """The mean of the ranks' own losses meets a value of the whole graph."""
    out = run.ddp(make_model())(*run.graph)
    of_ranks = run.mean_of_ranks(out, lambda rank, own: own.square().sum() * (rank + 1))
    of_ranks = of_ranks if run.rank is None else mean_of_batches(of_ranks.view(1))
    (of_ranks * run.loss(out)).backward()


@program
def values_without_gradient_on_a_rank(run: Run) -> None:
    out = run.ddp(make_model())(*run.graph)
    rows = torch.cat(run.parts[:1])
    if run.rank is None:
        (out[rows].square().sum() / out.numel() + 0 * out.sum()).backward()
    else:
        own = pyg_sar.local(out)
        values = own.square() if run.rank == 0 else torch.zeros_like(own)
        (mean_of_batches(values) + 0 * out.sum()).backward()


# Steps


@program
def optimizer_in_backward(run: Run) -> None:
    """Hooks from before and after the model became parallel; one parameter is used twice."""
    inner = make_model()

    def step(p: Tensor) -> None:
        p.add_(p.grad, alpha=-0.3)
        p.grad = None

    inner.head.weight.register_post_accumulate_grad_hook(step)
    model = run.ddp(inner)
    for p in model.parameters():
        if p is not inner.head.weight:
            p.register_post_accumulate_grad_hook(step)
    for _ in range(3):
        (run.loss(model(*run.graph)) + 0.1 * inner.head.weight.square().sum()).backward()
        assert all(p.grad is None for p in model.parameters())


@program
def optimizer_in_backward_with_no_sync(run: Run) -> None:
    """Hooks wait for the end of the step (with torch's own, and on one rank, they do not)."""
    model = run.ddp(make_model())
    calls = []
    with run.no_sync(model):
        if run.rank is not None:
            model.module.head.bias.register_post_accumulate_grad_hook(calls.append)
        run.loss(model(*run.graph)).backward()
    assert not calls or len(run.parts) == 1
    run.loss(model(*run.graph)).backward()
    assert run.rank is None or len(calls) == (2 if len(run.parts) == 1 else 1)


@program
def no_sync(run: Run) -> None:
    """After a backward whose gradient is whole already."""
    model = run.ddp(make_model())
    run.loss(model(*run.graph)).backward()
    with run.no_sync(model):
        (2 * run.loss(model(*run.graph))).backward()
        (3 * run.loss(model(*run.graph))).backward()
    (4 * run.loss(model(*run.graph))).backward()


@program
def no_sync_and_zero_grad(run: Run) -> None:
    model = run.ddp(make_model())
    with run.no_sync(model):
        run.loss(model(*run.graph)).backward()
    model.zero_grad()
    with run.no_sync(model):
        run.loss(model(*run.graph)).backward()
    for p in model.parameters():
        p.grad.mul_(0.5)
    run.loss(model(*run.graph)).backward()


# The model after it became parallel


@program
def unfreezing(run: Run) -> None:
    inner = make_model()
    inner.first.requires_grad_(False)
    model = run.ddp(inner)
    run.loss(model(*run.graph)).backward()
    inner.first.requires_grad_(True)
    inner.head.requires_grad_(False)
    run.loss(model(*run.graph)).backward()


@program
def unfreezing_what_no_forward_of_the_model_sees(run: Run) -> None:
    inner = make_model()
    inner.requires_grad_(False)
    model = run.ddp(inner)
    inner.first.requires_grad_(True)
    run.inner(model).first(*run.graph).square().mean().backward()


@program
def change_of_dtype_after_a_step(run: Run) -> None:
    model = run.ddp(make_model())
    run.loss(model(*run.graph)).backward()
    model.zero_grad()
    model.float().double()
    run.loss(model(*run.graph)).backward()


@program
def new_layer(run: Run) -> None:
    model = run.ddp(make_model())
    run.loss(model(*run.graph)).backward()
    torch.manual_seed(7)
    run.inner(model).head = torch.nn.Linear(8, 3).double()
    run.loss(model(*run.graph)).backward()
    run.loss(model(*run.graph)).backward()


@program
def saved_and_loaded(run: Run) -> None:
    buffer = io.BytesIO()
    torch.save(run.ddp(make_model()), buffer)
    buffer.seek(0)
    model = torch.load(buffer, weights_only=False)
    run.models = [model]
    run.loss(run.inner(model)(*run.graph)).backward()


@program
def layers_of_the_inner_model(run: Run) -> None:
    model = run.inner(run.ddp(make_model()))
    h = model.second(model.first(*run.graph).relu(), run.graph[1])
    h.square().mean().backward()


@program
def wrapped_twice(run: Run) -> None:
    inner = make_model()
    if run.rank is not None:
        DistributedDataParallel(inner)
    run.loss(run.ddp(inner)(*run.graph)).backward()


# Options, unused parameters, what one rank has alone


@program
def static_graph(run: Run) -> None:
    model = run.ddp(make_model(), static_graph=True)
    for _ in range(2):
        run.loss(model(*run.graph)).backward()


@program
def unused_parameters(run: Run) -> None:
    model = run.ddp(make_model(has_unused=True))
    for _ in range(2):
        run.loss(model(*run.graph)).backward()
    assert run.inner(model).unused.weight.grad is None


@program
def many_buckets(run: Run) -> None:
    """And a process group of the user's."""
    group = None if run.rank is None else dist.new_group()
    options = {'gradient_as_bucket_view': True, 'process_group': group}
    model = run.ddp(make_model(), bucket_cap_mb=0.0001, **options)
    for _ in range(2):
        run.loss(model(*run.graph)).backward()


class TwoGraphs(torch.nn.Module):
    """A layer that is used twice, on two edge_indices."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GCNConv(6, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        half = edge_index[:, src % 2 == dst % 2]
        h = self.conv(x, edge_index).tanh()
        return self.conv(h, half if self.training else edge_index)[:, :3]


@program
def a_layer_used_twice(run: Run) -> None:
    torch.manual_seed(0)
    run.loss(run.ddp(TwoGraphs().double().eval())(*run.graph)).backward()


class Extra(torch.nn.Module):
    """A parameter that only the nodes of the last rank read."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = LGConv()
        self.extra = torch.nn.Parameter(torch.linspace(-1, 1, 6).double())

    def forward(self, x: Tensor, edge_index: Tensor, rows: Tensor | None) -> Tensor:
        h = self.conv(x, edge_index)
        if rows is not None:
            h = torch.where(rows.view(-1, 1), h * self.extra, h)
        return self.conv(h, edge_index)


@program
def parameter_of_the_rows_of_one_rank(run: Run) -> None:
    model, x = run.ddp(Extra()), run.own(WHOLE['x'])
    of_last = torch.isin(torch.arange(run.data.num_nodes), run.parts[-1])
    model(x, run.graph[1], of_last).square().mean().backward()


@program
def parameter_in_the_loss_of_one_rank(run: Run) -> None:
    model = run.ddp(make_model(has_unused=True))
    unused = run.inner(model).unused
    out = model(*run.graph)

    def loss(rank: int, own: Tensor) -> Tensor:
        total = own.square().sum()
        return total + unused.weight.square().sum() if rank == 0 else total

    run.mean_of_ranks(out, loss).backward()


@program
def sparse_gradient(run: Run) -> None:
    class Embedded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds = torch.nn.Embedding(5, 6, sparse=True)
            self.conv = SAGEConv(6, 3)

        def forward(self, kinds: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(self.kinds(kinds), edge_index)

    torch.manual_seed(0)
    model = run.ddp(Embedded().double())
    for _ in range(2):
        run.loss(model(run.data.y, run.graph[1])).backward()
    for p in model.parameters():
        p.grad = p.grad.to_dense()


# Tensors of this rank's own that need a gradient


WHOLE: dict[str, Tensor] = {}
"""Of the whole graph: the features."""


@program
def input_that_was_computed(run: Run) -> None:
    model, x = run.ddp(make_model()), run.own(WHOLE['x'])
    out = model((2 * x).tanh() + x, edge_index=run.graph[1])
    (run.loss(out) + x.square().mean() + x.cos().sum()).backward()
    x.pow(4).mean().backward()


@program
def gradients_of_some(run: Run) -> None:
    model, x = run.ddp(make_model()), run.own(WHOLE['x'])
    loss = run.loss(model(x, run.graph[1]))
    loss.backward(inputs=[x, run.inner(model).head.weight], retain_graph=True)
    loss.backward(inputs=[run.inner(model).second.bias])


# Several models


def _two(run: Run) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return run.ddp(GCNConv(6, 6).double()), run.ddp(make_model())


@program
def torchs_own_around_a_wrapped_model(run: Run) -> None:
    model = make_model()
    if run.rank is not None:
        model = torch.nn.parallel.DistributedDataParallel(DistributedDataParallel(model))
    run.models.append(model)
    run.loss(model(*run.graph)).backward()


@program
def encoder_in_torchs_own(run: Run) -> None:
    """Dense layers before the model, in torch's DistributedDataParallel."""
    torch.manual_seed(5)
    encoder: torch.nn.Module = torch.nn.Linear(6, 6).double()
    if run.rank is not None:
        encoder = torch.nn.parallel.DistributedDataParallel(encoder)
    run.models.append(encoder)
    model = run.ddp(make_model())
    for _ in range(2):
        run.loss(model(encoder(run.data.x).tanh(), run.graph[1])).backward()


# Backwards inside of backwards


class Checkpointed(torch.nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.use_reentrant = use_reentrant
        self.first, self.second = SAGEConv(6, 8), GATConv(8, 4, heads=2)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        how = {'use_reentrant': self.use_reentrant}
        h = checkpoint(self.first, x, edge_index, **how).tanh()
        h = checkpoint(self.second, h, edge_index, **how)
        return self.head(checkpoint(self.second, h, edge_index, **how))


def _checkpointed(run: Run, use_reentrant: bool) -> None:
    torch.manual_seed(0)
    model, x = run.ddp(Checkpointed(use_reentrant).double()), run.own(WHOLE['x'])
    calls: list[Tensor] = []
    next(model.parameters()).register_post_accumulate_grad_hook(calls.append)
    for _ in range(2):
        run.loss(model(x, run.graph[1])).backward()
    assert len(calls) == 2


@program
def reentrant_checkpoint_inside(run: Run) -> None:
    _checkpointed(run, True)


@program
def checkpoint_around(run: Run) -> None:
    model, x = run.ddp(make_model()), run.own(WHOLE['x'])
    run.loss(checkpoint(model, 2 * x, run.graph[1], use_reentrant=False)).backward()


@program
def reentrant_checkpoint_around(run: Run) -> None:
    first, second = _two(run)
    x = run.own(WHOLE['x'])
    h = checkpoint(first, 2 * x, run.graph[1], use_reentrant=True)
    run.loss(checkpoint(second, h, run.graph[1], use_reentrant=True)).backward()


@program
def reversible_block(run: Run) -> None:
    class Reversible(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = GroupAddRev(SAGEConv(3, 3), num_groups=2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.block(x, edge_index)[:, :3]

    torch.manual_seed(0)
    model, x = run.ddp(Reversible().double()), run.own(WHOLE['x'])
    # It frees the memory of its rows, which is that of a rank.
    model(x + 0, run.graph[1]).square().mean().backward()


def run_program(name: str, data: Any, parts: list[Tensor], x: Tensor) -> dict[str, Any]:
    """Runs a program in this process: as a rank if `data` is a shard."""
    WHOLE['x'] = x
    is_rank = dist.is_initialized() and 'n_id' in data
    run = Run(data, parts, dist.get_rank() if is_rank else None)
    PROGRAMS[name](run)
    return run.found()
