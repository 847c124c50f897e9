"""Hooks of parameters and modules: whole gradients, also on one rank alone, which may only read."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import RankError, run_as_threads, run_ranks
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import GAT, GCN, GraphSAGE, HeteroConv, SAGEConv

import pyg_sar

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


def _data(name: str) -> Any:
    if name != 'hetero':
        return small_graph()
    out, draw = HeteroData(), torch.Generator().manual_seed(0)
    for kind, size in (('a', 17), ('b', 12)):
        out[kind].x = torch.randn(size, 6, generator=draw, dtype=torch.float64)
    ends = torch.stack([torch.randint(n, (60,), generator=draw) for n in (17, 12)])
    out['a', 'to', 'b'].edge_index, out['b', 'of', 'a'].edge_index = ends, ends.flip(0)
    return out


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


def _watch(model: Any, kind: str) -> Notes:
    notes = Notes()
    warnings.simplefilter('ignore')  # no input of a first layer takes a gradient
    for module in model.modules() if kind == 'modules' else ():
        if type(module).__name__.endswith(('SAGEConv', 'GATConv', 'GCNConv')):
            module.register_forward_hook(notes.module)
            module.register_full_backward_hook(notes.module)
            module.register_full_backward_pre_hook(notes.module)
    for p in model.parameters() if kind != 'modules' else ():
        if kind == 'accumulated':
            p.register_post_accumulate_grad_hook(notes.accumulated)
        else:
            p.register_hook(getattr(notes, kind))
    return notes


def _program(
    data: Any, name: str, kind: str, when: str, ranks: tuple[int, ...], wrap: Callable[[Any], Any]
) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    has_hooks = pyg_sar.comm.ranks.rank() in ranks
    notes = _watch(model, kind) if has_hooks and when == 'before' else Notes()
    model = wrap(model)
    notes = _watch(model, kind) if has_hooks and when == 'after' else notes
    found = []
    for step in range(4):
        if step != 2:  # gradients of the step before stay
            model.zero_grad()
        _loss(model, data).backward()
        found += [p.grad.clone() for p in model.parameters()]
    return found, notes.seen


def _on_rank(root: str, *args: Any) -> Any:
    return _program(pyg_sar.load_shard(root), *args, pyg_sar.DistributedDataParallel)


def _sorted(seen: list[Any]) -> list[Any]:
    """Of every step, in an order that does not depend on that of the calls."""
    return sorted(seen, key=lambda t: float(t.abs().sum()) if isinstance(t, Tensor) else 0.0)


def _cut(name: str, folder: Path) -> str:
    pyg_sar.partition_graph(_data(name), 3, folder / 'parts', method='random')
    return str(folder / 'parts')


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('kind', ['gradient', 'accumulated', 'modules'])
@pytest.mark.parametrize('name', MODELS)
def test_hooks_that_read_run_on_one_rank(tmp_path: Path, name: str, kind: str, when: str) -> None:
    want, seen = _program(_data(name), name, kind, when, (0,), lambda model: model)
    root = _cut(name, tmp_path)
    for rank, (found, of_rank) in enumerate(run_ranks(_on_rank, 3, root, name, kind, when, (1,))):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-11)
        if rank == 1:
            torch.testing.assert_close(_sorted(of_rank), _sorted(seen), rtol=0, atol=1e-11)


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('kind', ['gradient', 'accumulated', 'halved', 'in_place'])
def test_hooks_of_all_ranks_are_those_of_one_process(tmp_path: Path, kind: str, when: str) -> None:
    want, seen = _program(_data('GAT'), 'GAT', kind, when, (0,), lambda model: model)
    root = _cut('GAT', tmp_path)
    for world_size, run in ((1, run_ranks), (3, run_ranks), (3, run_as_threads)):
        for found, of_rank in run(_on_rank, world_size, root, 'GAT', kind, when, (0, 1, 2)):
            torch.testing.assert_close(found, want, rtol=0, atol=1e-11)
            torch.testing.assert_close(_sorted(of_rank), _sorted(seen), rtol=0, atol=1e-11)


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
    DATA[:] = [pyg_sar.load_shard(root)]
    model = pyg_sar.DistributedDataParallel(GAT(6, 8, 2, 3).double())
    if pyg_sar.comm.ranks.rank() == 1:
        p = next(model.parameters())
        way = p.register_post_accumulate_grad_hook if hook is steps_one else p.register_hook
        way(hook)
    for _ in range(2):
        _loss(model, DATA[0]).backward()


@pytest.mark.parametrize('hook', [changes_one, steps_one, sums_one, gathers_one, fails_one])
def test_what_a_hook_of_one_rank_may_not_do_is_told_by_its_name(tmp_path: Path, hook: Any) -> None:
    root = str(cut(small_graph(), 3, tmp_path / 'parts'))
    began = time.monotonic()
    with pytest.raises(RankError) as error:
        run_ranks(_alone, 3, root, hook)
    assert time.monotonic() - began < WITHIN
    assert hook.__name__ in str(error.value)
    others = {changes_one: 'alone', steps_one: 'alone', fails_one: 'no such run'}
    assert others.get(hook, 'which other ranks do not have') in str(error.value)
