"""Tensors that all ranks of a process have in common give what they give on processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

import pyg_sar
from pyg_sar.comm import ranks, vote

NUM_NODES, NUM_EDGES, NUM_RANKS = 40, 170, 3


def _graph() -> Data:
    generator = torch.Generator().manual_seed(3)
    return Data(
        x=torch.randn(NUM_NODES, 5, generator=generator, dtype=torch.float64),
        edge_index=torch.randint(NUM_NODES, (2, NUM_EDGES), generator=generator),
        y=torch.randint(3, (NUM_NODES,), generator=generator),
    )


@pytest.fixture(scope='module')
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('shared') / 'parts'
    pyg_sar.partition_graph(_graph(), NUM_RANKS, folder, method=torch.arange(NUM_NODES) % NUM_RANKS)
    return folder


def _shared(kind: str) -> Any:
    """What all ranks get."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(NUM_NODES, (2, 90), generator=generator)
    numbers = torch.rand(NUM_EDGES, generator=generator, dtype=torch.float64)
    if kind == 'edge_index':
        return ids
    if kind == 'edge_weight':
        return numbers
    if kind == 'mask':
        return numbers[:NUM_NODES] < 0.5
    if kind == 'ids':
        return ids[0]
    layout = {'coo': torch.sparse_coo, 'csr': torch.sparse_csr}[kind]
    matrix = torch.sparse_coo_tensor(ids, numbers[:90], (NUM_NODES, NUM_NODES)).coalesce()
    return matrix if kind == 'coo' else matrix.to_sparse(layout=layout)


def _trained(data: Any, kind: str, shared: Any, wrap: Callable[[Any], Any]) -> list[Tensor]:
    """The outputs of three steps, and the gradients of the last."""
    torch.manual_seed(0)
    conv = GCNConv if kind == 'edge_weight' else SAGEConv
    model = wrap(conv(5, 3).double())
    found = []
    for _ in range(3):
        model.zero_grad()
        edges = shared if kind in ('edge_index', 'coo', 'csr') else data.edge_index
        weights = (shared,) if kind == 'edge_weight' else ()
        out = model(data.x, edges, *weights)
        y = data.y
        if kind in ('mask', 'ids'):
            out, y = out[shared], y[shared]
        F.cross_entropy(out, y).backward()
        whole = pyg_sar.gather(out.detach()) if kind not in ('mask', 'ids') else out.sum(0).detach()
        found.append(whole.clone())
    return [*found, *(p.grad.clone() for p in model.parameters())]


def _on_parts(parts: Path, kind: str, shared: Any) -> list[Tensor]:
    data = pyg_sar.load_shard(parts)
    return _trained(data, kind, shared, pyg_sar.DistributedDataParallel)


@pytest.mark.filterwarnings('ignore:Converting sparse tensor to CSR')
@pytest.mark.parametrize('kind', ['edge_index', 'edge_weight', 'coo', 'csr', 'mask', 'ids'])
def test_one_tensor_for_all_ranks(parts: Path, tmp_path: Path, kind: str) -> None:
    expected = _trained(_graph(), kind, _shared(kind), lambda model: model)
    run = pyg_sar.run_in_turns(
        _on_parts, parts, parts, kind, _shared(kind), memory='1GB', spill=tmp_path
    )
    for found in run.results:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def _around_a_change(parts: Path, ids: Tensor) -> list[Tensor]:
    """Rank 0 writes to what all have, between two forwards."""
    data, found = pyg_sar.load_shard(parts), []
    model = pyg_sar.DistributedDataParallel(_summing())
    for step in range(2):
        found.append(pyg_sar.gather(model(data.x, ids).detach()).clone())
        if step == ranks.rank() == 0:
            ids[0, :20] = 7
        vote.agree(step)
    return found


def _summing() -> SAGEConv:
    torch.manual_seed(0)
    return SAGEConv(5, 3).double()


def test_a_change_is_seen_by_all_ranks(parts: Path, tmp_path: Path) -> None:
    ids, changed = _shared('edge_index'), _shared('edge_index')
    changed[0, :20] = 7
    expected = [_summing()(_graph().x, each).detach() for each in (ids, changed)]
    run = pyg_sar.run_in_turns(_around_a_change, parts, parts, ids, memory='1GB', spill=tmp_path)
    for found in run.results:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


class _Around(torch.nn.Module):
    def __init__(self, conv: torch.nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.conv(x, edge_index)


def _learns(parts: Path, how: str, model: Any) -> None:
    data = pyg_sar.load_shard(parts)
    if how == 'leaf':
        out = data.x * model
    elif how == 'layer':
        out = model(data.x)
    else:
        wraps = {'wrapped by all': model, 'a part': _Around(model)}
        own = pyg_sar.DistributedDataParallel(wraps[how]) if how in wraps else model
        out = own(data.x, data.edge_index)
    out.square().mean().backward()


@pytest.mark.parametrize(
    'how', ['leaf', 'layer', 'plain', 'wrapped by all', 'wrapped before', 'a part']
)
def test_what_learns_is_of_one_rank(parts: Path, tmp_path: Path, how: str) -> None:
    model: Any = GATConv(5, 3).double()
    if how == 'leaf':
        model = torch.ones(5, dtype=torch.float64, requires_grad=True)
    if how == 'layer':
        model = torch.nn.Linear(5, 3).double()
    if how == 'wrapped before':
        model = pyg_sar.DistributedDataParallel(model)
    with pytest.raises(ValueError, match=r"expected a (model|tensor) of this rank's own"):
        pyg_sar.run_in_turns(_learns, parts, parts, how, model, memory='1GB', spill=tmp_path)


def _own_leaf(parts: Path) -> Tensor:
    data, weight = pyg_sar.load_shard(parts), torch.ones(5, dtype=torch.float64, requires_grad=True)
    (data.x * weight).square().mean().backward()
    assert weight.grad is not None
    return weight.grad


def test_a_leaf_of_a_ranks_own(parts: Path, tmp_path: Path) -> None:
    x = _graph().x
    expected = 2 * x.square().sum(0) / x.numel()
    for _ in range(2):
        run = pyg_sar.run_in_turns(_own_leaf, parts, parts, memory='1GB', spill=tmp_path)
        for found in run.results:
            torch.testing.assert_close(found, expected)
