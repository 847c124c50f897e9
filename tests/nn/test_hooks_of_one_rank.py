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
from torch_geometric.nn import GAT, GCN, GraphSAGE, HeteroConv, SAGEConv, Sequential
from two_types import two_types

import pyg_sar
from pyg_sar.comm.ranks import rank

WITHIN = 60  # seconds; the timeout of the ranks is ten minutes


def hetero() -> torch.nn.Module:
    kinds = [('a', 'to', 'b'), ('b', 'of', 'a')]
    convs = [HeteroConv({kind: SAGEConv((6, 6), 6) for kind in kinds}) for _ in range(2)]
    return Sequential('x, edges', [(conv, 'x, edges -> x') for conv in convs])


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    'GAT': lambda: GAT(6, 8, 2, 3),
    'GCN': lambda: GCN(6, 8, 2, 3),
    'SAGE': lambda: GraphSAGE(6, 8, 2, 3),
    'hetero': hetero,
}


GRAPHS: dict[str, Callable[[], Any]] = {name: small_graph for name in MODELS}
GRAPHS['hetero'] = two_types


def _loss(model: Any, data: Any) -> Tensor:
    if isinstance(data, HeteroData) or hasattr(data, 'edge_index_dict'):
        out = model(data.x_dict, data.edge_index_dict)
        return sum(h.square().mean() for h in out.values())  # type: ignore[no-any-return]
    return F.cross_entropy(model(data.x, data.edge_index), data.y)


def _watch(model: Any, kind: str, seen: list[Any]) -> None:
    """Hooks that note what they get, and some that change it."""
    warnings.simplefilter('ignore')  # no input of a first layer takes a gradient

    def in_place(grad: Tensor) -> None:
        grad.mul_(0.5)

    hooks: dict[str, Callable[..., Any]] = {
        'gradient': lambda grad: seen.append(grad.detach().clone()),
        'accumulated': lambda p: seen.append(p.grad.clone()),
        'halved': lambda grad: seen.append(grad.detach().clone()) or grad.clamp(-0.01, 0.01) / 2,
        'in_place': in_place,
        'modules': lambda *_: seen.append(1),
    }
    for module in model.modules() if kind == 'modules' else ():
        if type(module).__name__.endswith(('SAGEConv', 'GATConv', 'GCNConv')):
            module.register_forward_hook(hooks[kind])
            module.register_full_backward_hook(hooks[kind])
            module.register_full_backward_pre_hook(hooks[kind])
    for p in model.parameters() if kind != 'modules' else ():
        is_after = kind == 'accumulated'
        (p.register_post_accumulate_grad_hook if is_after else p.register_hook)(hooks[kind])


def _program(
    data: Any, wrap: Wrap, name: str, kind: str, when: str, on: Sequence[int] = (0, 1, 2)
) -> dict[str, Any]:
    """Gradients of four steps, and on ranks with hooks what they have seen, in any order."""
    model, seen = MODELS[name]().double(), list[Any]()
    has_hooks = wrap is itself or rank() in on
    if has_hooks and when == 'before':
        _watch(model, kind, seen)
    model = wrap(model)
    if has_hooks and when == 'after':
        _watch(model, kind, seen)
    found = []
    for step in range(4):
        if step != 2:  # gradients of the step before stay
            model.zero_grad()
        _loss(model, data).backward()
        found += [p.grad.clone() for p in model.parameters()]
    size = lambda t: float(t.abs().sum()) if isinstance(t, Tensor) else 0.0  # noqa: E731
    return {'gradients': found, 'seen': sorted(seen, key=size)}


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
