"""Hooks of parameters and modules: whole gradients, also on one rank alone, which may only read."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from alike import Wrap, assert_same, cut_of, itself, on_ranks, on_whole_graph
from ranks import run_as_threads, run_ranks
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import GAT, GCN, GraphSAGE, HeteroConv, SAGEConv

import pyg_sar
from pyg_sar.comm.ranks import rank

WITHIN = 60  # seconds; the timeout of the ranks is ten minutes


class Hetero(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        kinds = [('a', 'to', 'b'), ('b', 'of', 'a')]
        self.convs = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv((6, 6), 6) for kind in kinds}) for _ in range(2)
        )

    def forward(self, x: Any, edges: Any) -> Any:
        for conv in self.convs:
            x = conv(x, edges)
        return x


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    'GAT': lambda: GAT(6, 8, 2, 3),
    'GCN': lambda: GCN(6, 8, 2, 3),
    'SAGE': lambda: GraphSAGE(6, 8, 2, 3),
    'hetero': Hetero,
}


def _pairs() -> HeteroData:
    out, draw = HeteroData(), torch.Generator().manual_seed(0)
    for kind, size in (('a', 17), ('b', 12)):
        out[kind].x = torch.randn(size, 6, generator=draw, dtype=torch.float64)
    ends = torch.stack([torch.randint(n, (60,), generator=draw) for n in (17, 12)])
    out['a', 'to', 'b'].edge_index, out['b', 'of', 'a'].edge_index = ends, ends.flip(0)
    return out


GRAPHS: dict[str, Callable[[], Any]] = {name: small_graph for name in MODELS}
GRAPHS['hetero'] = _pairs


def _loss(model: Any, data: Any) -> Tensor:
    if isinstance(data, HeteroData) or hasattr(data, 'edge_index_dict'):
        out = model(data.x_dict, data.edge_index_dict)
        return sum(h.square().mean() for h in out.values())  # type: ignore[no-any-return]
    return F.cross_entropy(model(data.x, data.edge_index), data.y)


class Notes:
    """Hooks that note what they get."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def gradient(self, grad: Tensor) -> None:
        self.seen.append(grad.detach().clone())

    def accumulated(self, p: Tensor) -> None:
        self.seen.append(p.grad.clone())  # type: ignore[union-attr]

    def halved(self, grad: Tensor) -> Tensor:
        self.seen.append(grad.detach().clone())
        return grad.clamp(-0.01, 0.01) / 2

    def in_place(self, grad: Tensor) -> None:
        grad.mul_(0.5)

    def module(self, *_: Any) -> None:
        self.seen.append(1)

    def watch(self, model: Any, kind: str) -> None:
        warnings.simplefilter('ignore')  # no input of a first layer takes a gradient
        for module in model.modules() if kind == 'modules' else ():
            if type(module).__name__.endswith(('SAGEConv', 'GATConv', 'GCNConv')):
                module.register_forward_hook(self.module)
                module.register_full_backward_hook(self.module)
                module.register_full_backward_pre_hook(self.module)
        for p in model.parameters() if kind != 'modules' else ():
            if kind == 'accumulated':
                p.register_post_accumulate_grad_hook(self.accumulated)
            else:
                p.register_hook(getattr(self, kind))


def _program(
    data: Any, wrap: Wrap, name: str, kind: str, when: str, on: Sequence[int] = (0, 1, 2)
) -> dict[str, Any]:
    """Gradients of four steps, and on ranks with hooks what they have seen, in any order."""
    model, notes = MODELS[name]().double(), Notes()
    has_hooks = wrap is itself or rank() in on
    if has_hooks and when == 'before':
        notes.watch(model, kind)
    model = wrap(model)
    if has_hooks and when == 'after':
        notes.watch(model, kind)
    found = []
    for step in range(4):
        if step != 2:  # gradients of the step before stay
            model.zero_grad()
        _loss(model, data).backward()
        found += [p.grad.clone() for p in model.parameters()]
    size = lambda t: float(t.abs().sum()) if isinstance(t, Tensor) else 0.0  # noqa: E731
    return {'gradients': found, 'seen': sorted(notes.seen, key=size)}


def _compare(name: str, size: int, by: str, *args: Any) -> None:
    graph = GRAPHS[name]
    want = on_whole_graph(_program, graph, name, *args)
    seen = {key: value for key, value in want.items() if key.startswith('seen')}
    on = args[2] if len(args) > 2 else range(size)
    for r, found in enumerate(
        on_ranks(_program, size, cut_of(graph, 3, 'random'), name, *args, by=by)
    ):
        of_rank = want if r in on else {k: v for k, v in want.items() if k not in seen}
        assert_same(found, of_rank, tolerance=1e-11, rtol=0)


CASES = [*product(MODELS, ['gradient', 'accumulated', 'modules'], ['before', 'after'])]


@pytest.mark.parametrize(('name', 'kind', 'when'), CASES)
def test_hooks_that_read_run_on_one_rank(name: str, kind: str, when: str) -> None:
    _compare(name, 3, 'processes', kind, when, (1,))


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('kind', ['gradient', 'accumulated', 'halved', 'in_place'])
def test_hooks_of_all_ranks_are_those_of_one_process(kind: str, when: str) -> None:
    for size, by in ((1, ''), (3, 'processes'), (3, 'threads')):
        _compare('GAT', size, by, kind, when)


def changes_one(grad: Tensor) -> Tensor:
    return grad * 2


def steps_one(p: Tensor) -> None:
    p.data.sub_(p.grad)  # type: ignore[arg-type]


def sums_one(grad: Tensor) -> None:
    dist.all_reduce(grad.clone())


def gathers_one(grad: Tensor) -> None:
    pyg_sar.gather(DATA[0].x.relu())


def fails_one(grad: Tensor) -> None:
    raise KeyError('no such run')


DATA: list[Any] = []


def _alone(root: str, hook: Any) -> None:
    data = pyg_sar.load_shard(root)
    DATA[:] = [data]
    model = pyg_sar.DistributedDataParallel(GAT(6, 8, 2, 3).double())
    if rank() == 1:
        p = next(model.parameters())
        way = p.register_post_accumulate_grad_hook if hook is steps_one else p.register_hook
        way(hook)
    for _ in range(2):
        _loss(model, data).backward()


@pytest.mark.parametrize('hook', [changes_one, steps_one, sums_one, gathers_one, fails_one])
def test_what_a_hook_of_one_rank_may_not_do_is_told_by_its_name(hook: Any) -> None:
    root, began = cut_of(small_graph, 3), time.monotonic()
    run = run_ranks if hook in (sums_one, gathers_one) else run_as_threads
    with pytest.raises(Exception) as error:  # noqa: PT011
        run(_alone, 3, root, hook)
    assert time.monotonic() - began < WITHIN
    text = ''.join(traceback.format_exception(error.value))
    assert hook.__name__ in text
    others = {changes_one: 'alone', steps_one: 'alone', fails_one: 'no such run'}
    assert others.get(hook, 'which other ranks do not have') in text
