"""What one rank alone may ask of rows: shapes, as it prints on rank 0; in a worker; in the end."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from expressions import expressions
from on_ranks import on_ranks, on_threads
from ranks import run_once
from small_graphs import attempt, cut, small_graph
from some_rows import N, X, rows
from torch.utils.data import DataLoader, Dataset
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import degree

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.threads import run_threads

SELECTED = """
chosen; chosen[:, 0]; chosen[chosen[:, 1] > 0]; torch.cat([x, chosen])
chosen.repeat_interleave(3, 0); x[x > 0]; x[(x[:, 0] > 0).nonzero().view(-1)]
torch.where(x[:, 0] > 0)[0]; x.masked_select(x < 0); edge_index[0][edge_index[0] > 2]
edge_index[:, degree(edge_index[1], x.size(0))[edge_index[1]] > 1]
pyg_sar.negative_sampling(edge_index, seed=1)
"""
NAMES = {'F': F, 'degree': degree, 'pyg_sar': pyg_sar, 'torch': torch}


@on_ranks(3, by='threads')
def test_shapes_are_known_without_asking(data: Any) -> None:
    x, edge_index = data.x, data.edge_index
    names = NAMES | {'x': x, 'edge_index': edge_index, 'chosen': x[x[:, 0] > 0]}
    found = [eval(each, names) for each in expressions(SELECTED)]
    if rank() == 0:
        for each in found:
            assert f'{each}' == repr(each)
            assert each.shape == each.size()
            assert each.numel() == each.shape.numel()
            assert each.size(each._dim) == each._sharding.total
            assert len(each) == each.shape[0]
    assert found[0].shape[0] == int(pyg_sar.gather(x)[:, 0].gt(0).sum())
    assert [each.sum().item() for each in found if each.is_floating_point()]


@on_threads(3)
def test_no_more_spaces_from_step_to_step() -> None:
    x, shardings, sums = rows(), [], []
    for step in range(30):
        chosen = x[x[:, 0] > (step - 15) / 10]
        again = x[x[:, 0] > (step - 15) / 10]
        both = torch.cat([x, chosen])
        loops = torch.cat([x, torch.ones(step + 1, 4, dtype=x.dtype)])
        wide = x[:, :1].expand(N, step + 2).reshape(-1)
        shardings += [weakref.ref(each._sharding) for each in (chosen, again, both, loops, wide)]
        sums.append(float(both.sum() + loops.sum() + (chosen - again).abs().sum()))
    del chosen, again, both, loops, wide
    gc.collect()
    assert sum(each() is not None for each in shardings) < len(shardings) / 2
    for step, found in enumerate(sums):
        right = X[X[:, 0] > (step - 15) / 10].sum() + 2 * X.sum() + 4 * (step + 1)
        torch.testing.assert_close(found, float(right))


# After their process group has ended: an error, never the numbers of one rank.

USES = """
out.mean(); (out.argmax(1) == data.y).double().mean(); data.x.sum(0); data.x.max(); data.x[17]
F.cross_entropy(out[data.train_mask], data.y[data.train_mask]); data.y.unique(); out * 2
pyg_sar.gather(out); pyg_sar.gather(data.edge_index); model(data.x, data.edge_index)
degree(data.edge_index[1]); pyg_sar.negative_sampling(data.edge_index)
losses[0].backward(); losses[1].backward(); losses[2].backward()
"""


def _ended(root: str, begins_again: bool) -> dict[str, str]:
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(SAGEConv(6, 3).double())
    out = model(data.x, data.edge_index)
    lin = pyg_sar.DistributedDataParallel(torch.nn.Linear(6, 3).double())
    batch = pyg_sar.local(data.x)
    losses, out = [each.square().mean() for each in (out, lin(data.x), lin(batch))], out.detach()
    store, rank, size = dist.FileStore(f'{root}-again'), dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if begins_again:
        dist.init_process_group('gloo', store=store, rank=rank, world_size=size)
    names = NAMES | {'data': data, 'model': model, 'out': out, 'losses': losses}
    found = {use: attempt(eval, use, names) for use in expressions(USES)}
    assert out.shape == (40, 3)
    assert isinstance(pyg_sar.local(out), torch.Tensor)
    if begins_again:
        again = pyg_sar.load_shard(root)
        found['loaded again'] = attempt(lambda: model(again.x, again.edge_index).mean())
    return found


def test_ended(tmp_path: Path) -> None:
    root = cut(small_graph(), 3, tmp_path / 'parts')
    for begins_again in (False, True):
        for found in run_once(_ended, 3, str(root), begins_again):
            assert found.pop('loaded again', 'no error') == 'no error'
            for name, outcome in found.items():
                assert outcome.startswith('RuntimeError: expected the ranks'), f'{name}: {outcome}'


def test_rows_that_leave_their_threads(tmp_path: Path) -> None:
    root = cut(small_graph(), 2, tmp_path / 'parts')
    data = run_threads(pyg_sar.load_shard, 2, str(root))[0]
    assert attempt(lambda: data.x.mean()).startswith('RuntimeError: expected the ranks')


# What a worker of a DataLoader asks, which no other rank sees.

REFUSED = """
chosen.shape; len(chosen); chosen.size(0); chosen.numel(); data.x[3]; data.x[torch.tensor([0, 2])]
data.x[1:4]; data.x.sum(); data.x.max(0); chosen + data.x[data.n_id % 3 == 1]
F.mse_loss(data.x, data.x + 1); pyg_sar.gather(data.x); data.x + torch.ones(data.num_nodes, 1)
data.conv(data.x, data.edge_index).detach()
"""
ANSWERED = """
len(data.x); list(data.x.shape); repr(chosen)[:5]; pyg_sar.local(data.x + 1).sum()
"""


class _Asks(Dataset[Any]):
    def __init__(self, data: Any, questions: list[str]) -> None:
        self.data, self.questions = data, questions

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, i: int) -> Any:
        data = self.data
        try:  # a selection that no rank has made before
            names = {'data': data, 'chosen': data.x[data.n_id % 3 == 1]}
            return eval(self.questions[i], NAMES | names)
        except Exception as error:
            return f'{type(error).__name__}: {error}'


def _in_worker(data: Any, table: str) -> list[Any]:
    options: dict[str, Any] = {'batch_size': None, 'num_workers': 1, 'timeout': 60}
    questions = _Asks(data, expressions(table))
    return list(DataLoader(questions, multiprocessing_context='fork', **options))


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork')
@on_ranks(by='own processes')
def test_what_asks_other_ranks_is_refused(data: Any) -> None:
    data.conv = pyg_sar.DistributedDataParallel(SAGEConv(data.x.size(1), 2).to(data.x.dtype))
    if rank() == 0:  # the others wait at the sum
        for name, told in zip(expressions(REFUSED), _in_worker(data, REFUSED), strict=True):
            assert isinstance(told, str), name
            assert 'ValueError' in told, name
            assert 'in a worker of a DataLoader' in told, name
            assert 'write num_workers=0' in told
        own = pyg_sar.local(data.x + 1).sum()
        expected = [data.num_nodes, list(data.x.shape), 'Rows(', own]
        found = _in_worker(data, ANSWERED)
        assert found == expected
    whole = pyg_sar.gather(data.x)  # the ranks are as they were
    torch.testing.assert_close(data.x.sum(0), whole.sum(0))
    assert data.conv(data.x, data.edge_index).shape == (data.num_nodes, 2)


@pytest.mark.filterwarnings('ignore:.*multi-threaded, use of fork')
@on_ranks(1)
def test_one_process_is_the_whole(data: Any) -> None:
    data.conv = SAGEConv(data.x.size(1), 2).to(data.x.dtype)
    for name, found in zip(expressions(REFUSED), _in_worker(data, REFUSED), strict=True):
        assert not isinstance(found, str), (name, found)
