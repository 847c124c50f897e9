"""A forward asks other ranks once, and sees whatever has changed, on one rank alone, too."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from alike import take_step
from few import few
from on_ranks import RUNS, on_ranks, parts_of
from small_graphs import assert_close, small_graph
from sum_conv import SumConv
from torch import Tensor
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from traffic import counted

import pyg_sar
from pyg_sar import gather
from pyg_sar.comm.exchange import Exchange
from pyg_sar.comm.ranks import rank
from pyg_sar.nn.reuse import SUMS as SUMS_OF_RAW_FEATURES
from pyg_sar.shard.blocks import plan_of

CONVS: dict[str, Callable[[], torch.nn.Module]] = {
    'SAGE': lambda: pyg.SAGEConv(6, 8),
    'SAGE narrow': lambda: pyg.SAGEConv(6, 3),
    'GCN': lambda: pyg.GCNConv(6, 8),
    'GCN cached': lambda: pyg.GCNConv(6, 8, cached=True),
    'GCN weights': lambda: pyg.GCNConv(6, 8),
    'GraphConv weights': lambda: pyg.GraphConv(6, 8),
    'GIN': lambda: pyg.GINConv(torch.nn.Linear(6, 8)),
    'GAT': lambda: pyg.GATConv(6, 4, 2),
}
MORE = {'SAGE sum': lambda: pyg.SAGEConv(6, 5, aggr='sum'), 'SG': lambda: pyg.SGConv(6, 5)}
GRAPH = small_graph()
SUMS = ('SAGE', 'GraphConv weights', 'GIN')
"""Those that sum features as they are."""


def _args(name: str, data: Any) -> tuple[Any, ...]:
    return (data.edge_weight.clone(),) if 'weights' in name else ()


@pytest.mark.parametrize('is_hidden', [False, True])
@pytest.mark.parametrize('with_gradients', [False, True])
@on_ranks()
def test_one_message_a_forward(data, is_hidden, with_gradients):
    for name, make in CONVS.items():
        conv = pyg_sar.SARConv(make().double())
        learns = torch.ones(1, dtype=torch.double, requires_grad=True)
        edges = data.edge_index.clone() if name == 'GCN cached' else data.edge_index
        args = (edges, *_args(name, data))
        for step in range(5):
            with counted() as traffic, torch.set_grad_enabled(with_gradients):
                conv(data.x * learns if is_hidden else data.x, *args)
            assert step < 3 or (traffic.others, traffic.all_to_alls) == (1, 0), name


def _of_one_rank(change: Callable[[Tensor], object]) -> Callable[..., None]:
    """A change of an own tensor of rank 1, or of all ranks in turns."""

    def changed(tensor: Any, step: int) -> None:
        if rank() == (1 if step < 6 else step % 3):
            change(pyg_sar.local(tensor))

    return changed


CHANGES = {
    'in place': _of_one_rank(torch.no_grad()(lambda tensor: tensor.add_(1))),
    'unseen': _of_one_rank(lambda tensor: tensor.data.mul_(2)),
    'by numpy': _of_one_rank(lambda t: np.copyto(t.numpy(), t.numpy()[::-1].copy())),
    'nothing': _of_one_rank(lambda tensor: None),
}

MODES: dict[str, Callable[[int], AbstractContextManager[Any]]] = {
    'training': lambda step: torch.enable_grad(),
    'evaluation': lambda step: torch.no_grad(),
    'in turns': lambda step: (torch.enable_grad, torch.no_grad, torch.inference_mode)[step % 3](),
}


def _changed(root: str, name: str, what: str, how: str, mode: str) -> None:
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    plain = CONVS[name]().double()
    model, x = pyg_sar.DistributedDataParallel(copy.deepcopy(plain)), data.x.clone()
    args = _args(name, data)
    if name == 'GCN cached':
        plain.cached = False
    for step in range(10):
        if step in (3, 5, 6, 7):
            CHANGES[how](x if what == 'features' else args[0], step)
        want = plain(gather(x), GRAPH.edge_index, *map(gather, args))
        model.train(step % 4 != 2), plain.train(step % 4 != 2)
        with MODES[mode](step):
            assert_close(gather(model(x, data.edge_index, *args)), want, tolerance=1e-10)


CHANGED = [
    (name, what, how)
    for name in CONVS
    for what in ('features', 'weights')
    if what == 'features' or 'weights' in name
    for how in CHANGES
]
CASES = [
    (*case, [*MODES][i % 3], ('processes', 'threads')[i % 2]) for i, case in enumerate(CHANGED)
]


@pytest.mark.parametrize(('name', 'what', 'how', 'mode', 'by'), few(CASES, 5))
def test_what_changes_is_seen(name: str, what: str, how: str, mode: str, by: str) -> None:
    RUNS[by](_changed, 3, str(parts_of(3)), name, what, how, mode)


def _check(conv: Any, plain: Any, data: Any, x: Any = None, *args: Any) -> None:
    x = data.x if x is None else x
    want = plain(gather(x), GRAPH.edge_index, *map(gather, args))
    assert_close(gather(conv(x, data.edge_index, *args)), want, tolerance=1e-10)


def _made_anew(root: str, name: str, ranks: list[int], factor: float) -> None:
    """Weights that some ranks make anew in every forward, with other content or the same."""
    data, plain = pyg_sar.load_shard(root), CONVS[name]().double()
    conv, weight = pyg_sar.SARConv(copy.deepcopy(plain)), data.edge_weight.clone()
    for step in range(6):
        if rank() in ranks and step > 2:
            weight = weight * factor
        _check(conv, plain, data, data.x, weight)


@pytest.mark.parametrize('name', ['GCN weights', 'GraphConv weights'])
@pytest.mark.parametrize(
    ('ranks', 'factor', 'by'),
    few([([1], 2.0, 'processes'), ([1], 1.0, 'threads'), ([0, 1, 2], 1.0, 'processes')], 2),
)
def test_weights_made_anew(name: str, ranks: list[int], factor: float, by: str) -> None:
    RUNS[by](_made_anew, 3, str(parts_of(3)), name, ranks, factor)


def _pair(name: str) -> tuple[Any, Any]:
    """A conv of plain PyG, and its wrapped copy."""
    torch.manual_seed(0)
    plain = (CONVS | MORE)[name]().double()
    return plain, pyg_sar.SARConv(copy.deepcopy(plain))


def _fetches() -> Any:
    """Counts the exchanges of rows that this process starts."""
    return mock.patch.object(
        Exchange, 'all_gather_halo', autospec=True, side_effect=Exchange.all_gather_halo
    )


@pytest.mark.parametrize('name', SUMS)
@on_ranks()
def test_features_that_one_rank_alternates(data, name):
    """A rank has kept a sum of these very rows with others of another rank."""
    (plain, conv), other, args = _pair(name), data.x * 2, _args(name, data)
    for which in 'ABAABBA':
        _check(conv, plain, data, other if which == 'B' and rank() == 1 else data.x, *args)


@pytest.mark.parametrize('name', ['SAGE', 'SAGE narrow', 'GCN'])
@on_ranks()
def test_hooks_of_one_rank(data, name):
    """One rank hooks the aggregation, then a module, then all modules, and takes them away."""
    (plain, conv), seen = _pair(name), list[int]()
    inner = conv.lin if name == 'GCN' else conv.lin_l
    of_all = torch.nn.modules.module.register_module_forward_hook
    of_aggregation = conv.aggr_module.register_forward_hook
    for register in (of_aggregation, inner.register_forward_pre_hook, of_all):
        for is_hooked in (False, False, True, True, False):
            handle = register(lambda *_: seen.append(1)) if is_hooked and rank() == 1 else None
            _check(conv, plain, data)
            if handle is not None:
                handle.remove()
                assert seen
                seen.clear()


@on_ranks()
def test_a_hook_that_gives_other_features(data):
    """Forwards of a conv with such hooks ask each time, as do those of a program's own."""
    (plain, conv), numbers = _pair('SAGE'), iter(range(9))

    def changed(module: Any, inputs: Any) -> Any:
        edges, size, kwargs = inputs
        x = kwargs['x'][0]
        return edges, size, {'x': (x.clone() if next(numbers) % 3 and rank() == 1 else x, x)}

    conv.register_propagate_forward_pre_hook(changed)
    for _ in range(6):
        _check(conv, plain, data)


class _Own(pyg.SAGEConv):  # type: ignore[misc]
    """Gives features, or a copy of them, where a rank likes to."""

    num_calls = ()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.num_calls = (*self.num_calls, 1)
        if len(self.num_calls) % 3 == rank():
            x = x.clone()
        out: Tensor = super().forward(x, edge_index)
        return out


@on_ranks()
def test_a_forward_of_ones_own(data):
    plain, conv = pyg.SAGEConv(6, 8).double(), pyg_sar.SARConv(_Own(6, 8).double())
    plain.load_state_dict(conv.state_dict())
    for _ in range(7):
        _check(conv, plain, data)


@on_ranks()
def test_a_forward_that_fails(data):
    """On all ranks, between others."""
    plain, conv = _pair('GCN')
    for step in range(6):
        if step % 2:
            with (
                pytest.raises(RuntimeError),
                mock.patch.object(torch.nn.Linear, 'forward', side_effect=RuntimeError),
                mock.patch.object(type(conv.lin), 'forward', side_effect=RuntimeError),
            ):
                conv(data.x, data.edge_index)
        _check(conv, plain, data)


# Sums of raw features are kept, and never where they would be others


@on_ranks()
def test_a_kept_sum_serves_evaluations_and_other_layers(data):
    fetches = []
    for conv in [pyg_sar.SARConv(pyg.SAGEConv(6, 8).double()) for _ in range(2)]:
        for with_gradients in (True, False, False, True):
            with _fetches() as fetch, torch.set_grad_enabled(with_gradients):
                conv(data.x, data.edge_index)
            fetches.append(fetch.call_count)
    assert fetches == [1, *[0] * 7]


@pytest.mark.parametrize('name', ['SAGE', *few(['SAGE sum', 'SG', 'GIN'], every=4)])
@on_ranks(kind='empty part')
def test_exact_and_fetched_once(data, name):
    """Steps and evaluations in turn, features changed in place, then replaced."""
    (plain, conv), x = _pair(name), data.x.clone()

    def check(factor: float, fetches: bool, *, trains: bool = True) -> None:
        of_graph = Data(x=GRAPH.x * factor, edge_index=GRAPH.edge_index)
        for each in (plain, conv):
            each.zero_grad()
        want = take_step(plain, of_graph)
        with _fetches() as fetch, torch.set_grad_enabled(trains):
            out = conv(x, data.edge_index)
        assert bool(fetch.call_count) == fetches
        if trains:
            out.square().sum().backward()
            for a, b in zip(conv.parameters(), want[2:], strict=True):
                assert_close(a.grad, b, tolerance=1e-10)
        assert_close(gather(out.detach()), want[0], tolerance=1e-10)

    check(1, True)
    check(1, False)
    check(1, False, trains=False)
    x.mul_(2)
    check(2, True)
    check(2, False)
    x = x.clone() * 2
    check(4, True)


@on_ranks()
def test_ranks_keep_and_drop_together(data):
    """One rank alone has its features anew in the third step."""
    conv, outs, counts = pyg_sar.SARConv(pyg.SAGEConv(6, 5).double()), [], []
    for step in range(4):
        if rank() == 1 and step == 2:
            data.x = data.x.clone()
        with _fetches() as fetch:
            outs.append(conv(data.x, data.edge_index).detach())
        counts.append(fetch.call_count)
    assert all(torch.equal(out, outs[0]) for out in outs)
    assert counts == [1, 0, 1, 0]


@on_ranks(1, 3)
def test_freed_with_the_features(data):
    conv = pyg_sar.SARConv(pyg.SAGEConv(6, 5).double())
    plan = plan_of(data.edge_index.handle)
    x = data.x.clone()
    conv(x, data.edge_index)
    assert len(SUMS_OF_RAW_FEATURES.get(plan)) == 1
    del x
    gc.collect()
    assert len(SUMS_OF_RAW_FEATURES.get(plan)) == 0
    with torch.no_grad():  # nothing is kept where nothing is learned
        conv(data.x, data.edge_index)
    assert len(SUMS_OF_RAW_FEATURES.get(plan)) == 0


class Writes(SumConv):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index).add_(1)


@on_ranks(1, 3)
def test_writing_into_an_output_leaves_what_is_kept_alone(data):
    """And what others were given."""
    conv = pyg_sar.SARConv(Writes())
    assert torch.equal(*(conv(data.x, data.edge_index).clone() for _ in range(2)))
    conv = pyg_sar.SARConv(pyg.SimpleConv('sum'))
    first = conv(data.x, data.edge_index)
    before = first.clone()
    second = conv(data.x, data.edge_index)
    second.mul_(3)
    assert torch.equal(first, before)
    first.zero_()
    assert torch.equal(second, 3 * before)
    with _fetches() as fetch:
        assert torch.equal(conv(data.x, data.edge_index), before)
    assert fetch.call_count == 0
