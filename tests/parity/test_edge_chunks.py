"""Replay over chunks of a block's edges: as few edges alive as asked for, and nothing changes."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conv_cases import ANY
from conv_graphs import plain
from exact import Result, run_case
from few import few
from outcome import assert_exact
from ranks import run_as_threads, run_ranks
from sum_conv import SumConv
from torch import Tensor

import pyg_sar
from pyg_sar.nn.call import NUM_EDGES
from pyg_sar.ops import chunks
from pyg_sar.shard import index_rows as rows_at

ROW_BYTES = 64  # of x: 8 float64


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('chunks') / 'random3'
    pyg_sar.partition_graph(plain(), 3, folder, method='random')
    return folder


def _in_chunks(num_edges: int, name: str, root: str, mode: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, 'CHUNK_BYTES', 1)
        patch.setattr(chunks, 'MIN_EDGES', num_edges)
        return run_case(ANY[name], root, mode=mode)


NAMES = [
    *('PNAConv: all scalers', 'GINEConv: edge features'),
    *('MessagePassing: two propagates, node_dim=1', 'EdgeConv: aggr=max, ties'),
    *('SAGEConv: aggr=mul', 'GATConv: edge features', 'AGNNConv: learnable beta'),
    *('SAGEConv: mean, max and std, mode=attn', 'MessagePassing: two softmaxes, one of the other'),
]
OTHERS = [
    *('NNConv: add', 'DNAConv: 2 heads', 'TransformerConv: edge features', 'RGATConv: additive'),
    *('EGConv: sum, max, std, symnorm', 'GENConv: softmax, learnable t', 'GATConv: turned'),
    *('GATv2Conv: edge features', 'PointTransformerConv: default', 'FAConv: normalized'),
    *('GeneralConv: additive attention', 'SimpleConv: aggr=Attentional with net'),
]


@pytest.mark.parametrize('name', [*NAMES, *few(OTHERS, every=6)])
@pytest.mark.parametrize('mode', few(['sequential', 'sequential_no_remat']))
def test_chunks_of_few_edges(root: Path, name: str, mode: str) -> None:
    """One destination's edges, and tied maxima, lie in several chunks."""
    assert_exact(name, run_ranks(_in_chunks, 3, 5, name, str(root), mode))


@pytest.mark.parametrize('name', [NAMES[0], NAMES[-1], OTHERS[2]])
def test_chunks_of_one_edge(root: Path, name: str) -> None:
    assert_exact(name, [_in_chunks(1, name, str(root), 'sequential')])


BY_DESTINATION = 'SAGEConv: aggr=median', 'FastRGCNConv: sum, bases', 'RGATConv: mod=scaled'


@pytest.mark.parametrize('name', BY_DESTINATION)
@pytest.mark.parametrize('num_edges', [1, 40])
def test_chunks_of_destinations(root: Path, name: str, num_edges: int) -> None:
    assert_exact(name, run_as_threads(_in_chunks, 3, num_edges, name, str(root), 'sequential'))


def _of_wide_rows(*args: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_at, '_NARROW_BYTES', 0)
        return _in_chunks(40, *args)


@pytest.mark.parametrize('name', [*NAMES[:2], NAMES[3], NAMES[5]])
def test_chunks_of_wide_rows(root: Path, name: str) -> None:
    """More edges than destinations, as their sums over segments of rows ask for."""
    assert_exact(name, run_ranks(_of_wide_rows, 3, name, str(root), 'sequential'))


# Not of the conv: what a message keeps there is that of all edges at once. And by a partial: so is
# what a message is seen to keep elsewhere.
NOTED = SimpleNamespace(seen=[], alive=[], messages=[])


def _note(*edges: Tensor) -> None:
    NOTED.seen.append(edges[0].size(0))
    NOTED.alive.append(sum(m().size(0) for m in NOTED.messages if m() is not None))


def _remember(*edges: Tensor) -> None:
    NOTED.messages += map(weakref.ref, edges)


BEFORE, AFTER = partial(_note), partial(_remember)


class Watched(SumConv):
    """Notes how many edges every message gets, and how many of earlier ones are still alive."""

    def __init__(self, aggr: str) -> None:
        super().__init__(aggr=aggr)
        self.lin = torch.nn.Linear(8, 8).double()

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        if type(x_j) is not Tensor or x_j.size(0) == NUM_EDGES:  # the run that finds what it does
            return self.lin(x_i - x_j).tanh()
        BEFORE(x_j)
        out = self.lin(x_i - x_j).tanh()
        AFTER(x_i, x_j, out)
        return out


@pytest.mark.parametrize('aggr', ['sum', 'max', 'softmax', 'std'])
def test_no_more_edges_are_alive(root: Path, aggr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, 'MIN_EDGES', 1)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 16 * ROW_BYTES)
    data = pyg_sar.load_shard(root)
    conv = Watched(aggr)
    module = pyg_sar.DistributedDataParallel(conv)
    x = data.x.requires_grad_()
    module(x, data.edge_index)  # the ranks agree, on a few edges
    NOTED.seen.clear()
    NOTED.messages.clear()
    out = module(x, data.edge_index)
    assert sum(NOTED.seen) == data.edge_index.size(1)
    NOTED.seen.clear()
    NOTED.alive.clear()
    out.sum().backward()
    assert sum(NOTED.seen) == data.edge_index.size(1)
    assert max(NOTED.seen) == 16
    assert NOTED.alive == [0] * len(NOTED.alive)


class Dropout(SumConv):
    """HasCache its mask per edge: with a softmax as the aggregation it takes two passes."""

    def message(self, x_j: Tensor) -> Tensor:
        self.kept = F.dropout(torch.ones_like(x_j), training=self.training)
        return x_j * self.kept


@pytest.mark.parametrize('aggr', ['sum', 'softmax', 'median'])
def test_every_chunk_draws_its_own(root: Path, aggr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the first pass gets to it or stops at a softmax before."""
    monkeypatch.setattr(chunks, 'MIN_EDGES', 32)
    monkeypatch.setattr(chunks, 'CHUNK_BYTES', 1)
    data = pyg_sar.load_shard(root)
    conv = Dropout(aggr)
    module = pyg_sar.DistributedDataParallel(conv)
    module(data.x, data.edge_index)
    masks = conv.kept[:288].view(9, -1)
    assert len({tuple(mask.tolist()) for mask in masks}) == len(masks)
