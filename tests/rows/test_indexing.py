"""Indices of rows, read and written: torch's results on the whole, and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from alike import cut_of
from as_whole import check
from expressions import expressions
from few import few
from graphs import awkward_graph
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import coalesce

import pyg_sar

N = 60
IDS = torch.tensor([3, 0, N - 1, 5])
COLS = torch.tensor([0, 2])
TWO = torch.tensor(2)
MASK = torch.arange(6 * N).view(N, 6) % 7 < 2
TRIPLE = torch.tensor([[3, 1, 2]])  # a column of it has one number and stride 3

READ = """
x[TRIPLE[:, 0]]; x[TRIPLE[:, 0], TRIPLE[:, 1]]
x[:5, [0, 2]]; x[3, [0, 2]]; x[-1, COLS]; x[3:9, COLS]; x[::7, COLS]; x[::2, ::2]; x[1:-1, 1:-1]
x[3]; x[3, 1]; x[:5, 1]; x[-5:]; x[0:0]; x[()]; x[None]; x[:, None]; x[None, :5]; x[..., None, :2]
x[IDS, 1]; x[IDS, TWO]; x[IDS, [0, 2, 1, 3]]; x[IDS, 1:3]; x[IDS, ...]; x[None, IDS]; x[IDS[0]]
x[IDS.view(2, 2)]; x[IDS[:, None], COLS]; x[IDS[:, None], torch.zeros(4).long()]; x[IDS[0], IDS[1]]
x[..., COLS]; x[..., 0]; x[:, -1]; x[:, x.mean(0) > 0]; x[[]]; x[[3, 0, 5]]; x[range(5)]
x[np.array([3, 0, 5])]; x[np.int64(3)]; x[np.array([3, 0]), 1]; x[np.arange(N) % 2 == 0]
x[y > 1]; x[y > 1, 0]; x[y > 1, 1:3]; x[y > 1][:, COLS]; x[y > 1000]; x[x > 0]; x[y == 1][:3]
x[torch.arange(N), y]; x[torch.arange(5), y[:5]]; x[IDS, y[IDS]]; x[y]; x[y.argmax()]
x[torch.where(y > 1)[0]]; x[(y > 1).nonzero().view(-1)]; x[x[:, 0].topk(5).indices]
x.narrow(0, 2, 5); x.select(0, 3); x.split([2, 58])[1]; x.chunk(2)[0]; x.index_select(0, IDS)
x[:, 0].scatter(0, IDS, 7.0); x[:, 1].scatter(0, IDS, row[:4])
z[:5, 0, [1, 2]]; z[3, :, [1, 2]]; z[3, [0, 1], [1, 2]]; z[:5, [0, 1], [1, 2]]; z[5:9, :, [1, 2]]
z[IDS, :, [0, 1, 2, 3]]; z[:, 0, [1, 2]]; z[:, [0, 1], [1, 2]]; z[:, [[0, 1], [1, 2]], [1, 2]]
z[:, torch.tensor([True, False, True])]; z[:, z.mean(0) > 0]; z[3, z.mean(0) > 0]; z[y > 1, 0, 1]
z[..., 0, [1, 2]]; z[[3, 4], ..., 0]; z[[3, 4], ..., [0, 1]]; z[:, [0, 1], None]; z[y > 1, ..., 0]
t[[0, 1], 3]; t[[0, 1], 3:9]; t[0, :, [1, 2]]; t[0, :, 1]; t[[0, 1], :, [1, 2]]; t[[0, 1], :, 2]
t[0, 3, [1, 2]]; t[[0, 1], 3, [1, 2]]; t[[0, 1], :, TWO]; t[TWO, :, [1, 2]]; t[:, :, None, [1, 2]]
t[[0, 1], None, :, [1, 2]]; t[None, [0, 1], :, 1]; t[0, None, :, [1, 2]]; t[0, 3:7, [1, 2]]
t[1, IDS]; t[:, IDS]; t[:, IDS, 2]; t[1, IDS, [1, 2, 3, 0]]; t[[0, 1, 2, 3], IDS, [1, 2, 3, 0]]
t[:, IDS, [1, 2, 3, 0]]; t[:, 3]; t[:, 3, [1, 2]]; t[[0, 1], 3:7, [1, 2]]
x[y > 1, y[y > 1]]; x[y > 1, TWO]; z[torch.arange(N), y % 3]; x[y.argmax(), 0]; x[:, 0][y.argmax()]
x[y.int()]; x - x[x[:, 0] == x[:, 0].max()]; x[x[:, 0] == x[:, 0].max()] * x
x.round().topk(9, 0)[0]
x[x[:, 0] == x[:, 0].max()].squeeze(); x * x[x[:, 0] == x[:, 0].max(), 0].item(); x[:, x[:6, 0] > 0]
x[int((x[:, 0] == x[:, 0].max()).nonzero())]; x[(x > 0).sum(1).topk(10)[1]]; x * (3 in y)
x.gather(0, y[:, None].repeat(1, 6)); x.new_zeros(N, 6).index_put((y,), x, accumulate=True)
torch.take_along_dim(x, y[:, None], 1); torch.hsplit(x, 2)[1]; torch.stack([*reversed(x)])
torch.tensordot(x, x, ([0], [0])); torch.corrcoef(x.t()); torch.trapezoid(x); x * torch.equal(x, z)
x[x[:, 0] > 99].logsumexp(0).exp(); torch.autograd.grad(x.sin(), x, torch.ones_like(x))[0] * x
"""

WRITTEN = """
x[3] = 1; x[3, 1] = 2; x[-1] = x[0]; x[-5:] = 0; x[:5] = x[5:10]; x[:5, 1] = x[5:10, 2]
x[IDS] = 0; x[IDS, 1] = 0.5; x[IDS, 1] = row[:4]; x[IDS] = table; x[IDS, 1:3] = table[:, :2]
x[IDS.view(2, 2)] = 7; x[np.array([3, 0])] = 1; x[np.int64(3)] = 1; x[np.arange(N) % 2 == 0] = 1
x[y > 1] = 0; x[y > 1, 0] = 0; x[y > 1, 1:3] = 1; x[y > 1] = x[y > 1] * 2; x[y > 1] = row
x[y > 1, 0] = x[y > 1, 1]; x[x > 0] = 0; x[x > 0] = x[x > 0] * 2; x[y.argmax()] = 1
x[:, 0] = 1; x[:, COLS] = x[:, [1, 3]]; x[:, 1:3] = x[:, 3:5]; x[..., 0] = y.double(); x[:] = row
x[IDS, y[IDS]] = 1; x[IDS, [0, 2, 1, 3]] = 0; z[IDS, [0, 1, 0, 1], [2, 1, 0, 0]] = 3
x[IDS[:, None], COLS] = 5; x[torch.arange(N), y] = 4; x[y, y] = 2; x[TRIPLE[:, 0], TRIPLE[:, 1]] = 8
x[torch.where(y > 1)[0]] = 2; x[torch.where(y > 1)] = 2; x[x[:, 0].topk(5).indices] = 1
z[:, 0, [1, 2]] = row[:2]; z[:, [0, 1], [1, 2]] = 1; z[IDS, 0, 1] = row[:4]; z[y > 1, ..., 1] = 2
z[:5, 0] = z[5:10, 1]; z[:, 0] = z[:, 1]; z[:, :, 0] = x[:, :3]; z[IDS, :, 1] = table[:, :3]
t[0] = 1; t[:, 3] = 1; t[:, IDS] = 1; t[0, IDS] = table[:, :4]; t[0, :, [1, 2]] = x[:, [1, 2]]
t[[0, 1], :, [1, 2]] = x[:, [1, 2]].t(); t[:, y > 1] = 1; t[0, y > 1] = x[y > 1, :4]
x[IDS] += 1; x[y > 1] += 1; x[3] += 1; x[3, 1] += 1; x[:5] -= x[5:10]; x[2:5, 1] *= 2
x[2:9:3] += 1; x[-4:] -= x[:4]; x[: y.argmax() + 2] *= 2; x[np.int64(2) : np.int64(5)] /= 2
x[:5, :2] += 1; x[2:5, 1:3] *= 2; x[(slice(2, 5), 0)] -= 1; z[:5, 0, :2] -= 1; z[1:4, ..., 1] += 1
t[:, 2:9] -= 1; t[0, 2:9, :2] += t[1, 2:9, :2]; x[:] += row; x[:5] -= x[:5] * 2
x[:, 0].zero_(); x[:5].clone().zero_(); (x * 2)[:5].add_(1); z[:, 0][3] += 1; x.t()[:, 3] = 1
x[IDS.view(2, 2)] = x[IDS.view(2, 2)] * 2; x[IDS.view(2, 2)] = row; x[TRIPLE] = table[:3]
x[IDS.view(2, 2), 1:3] = table[:2, None, 2:4]; x[IDS.view(2, 2), 1] = table[:2, :2]
t[:, IDS.view(2, 2)] = t[:, IDS.view(2, 2)] + 1; t[0, IDS.view(2, 2)] = table[:2, None, :4]
x[:, 0] = torch.zeros(N).double().scatter_(0, torch.arange(N - 1, -1, -1), x[:, 1])
x[[1, 2], [0, 3]] = row[:2]; x[3, [0, 1]] = 1; x[y > 1, y[y > 1]] = 0; x[COLS, COLS] += 1
x[3] = torch.arange(6); x[3, 2] = TWO; x[3:5] = torch.ones(2, 6); x[3, x.mean(0).argmax()] = 5
x[x.argmax() // 6, x.argmax() % 6] += 1; x[IDS, y[IDS]] = x[IDS, 0] * 2
x[MASK] = 0; x[MASK] = x[MASK] * 2; x[MASK.numpy()] = TWO; x[MASK] += 1; x.t()[MASK.t()] = 3
x[MASK] = torch.arange(int(MASK.sum())).double(); x[MASK] = row[:1]; z[MASK[:, :3]] = row[:4]
x[x > 0] = torch.arange(int((x > 0).sum())).double(); z[MASK[:, :3]] = z[MASK[:, :3]] * 2
z[MASK[:, :3]] = torch.arange(4.0 * int(MASK[:, :3].sum())).view(-1, 4).double()
"""

CHANGED_COPIES = """
x[0].zero_(); x[:5].zero_(); x[0][1].zero_(); x[:, :3][:5].add_(1); x[:5][:, 0] = 1
x.select(0, 3).fill_(1); x.narrow(0, 2, 5).fill_(1); x.split([10, 50])[0].zero_()
z[:, 0][3].fill_(1); x[y.argmax()].zero_(); x[3].detach().zero_(); x[3].data.zero_()
x[3:5].numpy()[:] = 8; np.asarray(x[3])[0] = 8; torch.utils.dlpack.from_dlpack(x[3:5]).zero_()
x.view(5, 2, -1)[0].zero_(); list(x)[3].zero_()
square.diagonal().zero_(); z[:, :, :3].diagonal(dim1=1, dim2=2).zero_(); x.unbind()[3].fill_(2)
"""
CHANGED_EDGES = """
edges[1:].fill_(2); edges.select(0, 1).fill_(2); edges.t()[:, 0].clamp_(max=9); edges[:, 3].zero_()
edges[0, 3].zero_(); edges.chunk(2)[1].fill_(2); edges.split(1)[1].fill_(2); edges[None].fill_(2)
edges.unsqueeze(0)[0, 1].fill_(2); edges[..., 0].fill_(2); edges.narrow(0, 1, 1).fill_(2)
edges.view(-1)[:9].fill_(2); edges.t().unbind()[3].zero_(); edges.diagonal().zero_()
"""
CHANGED_ROWS_OF_EDGES = """
edges[0].zero_(); edges.unbind()[1].fill_(2); edges.data[0].fill_(2); edges[0, 3].zero_()
edges.to(torch.long)[0].fill_(2); edges.reshape(2, -1)[0].fill_(2); edges[0].numpy()[:] = 0
"""


def _graph() -> Any:
    data = awkward_graph()
    generator = torch.Generator().manual_seed(0)
    for name, shape in {'x': (N, 6), 'z': (N, 3, 4), 't': (N, 5, 4)}.items():
        data[name] = torch.randn(shape, generator=generator, dtype=torch.double)
    data.y = data.y % 6
    return data


def _names(data: Any, *, learn: bool) -> dict[str, Any]:
    """What lines name; x, z and t with a gradient if they `learn`."""
    of_data = {'x': data.x, 'z': data.z, 't': data.t.transpose(0, 1)}
    leaves = {name: rows.clone().requires_grad_(learn) for name, rows in of_data.items()}
    numbers = torch.arange(24, dtype=torch.double)
    return (
        globals()
        | leaves
        | {'np': np, 'y': data.y, 'row': numbers[:6], 'table': numbers.view(4, 6)}
    )


WRITES = expressions(WRITTEN)


def run(line: Any, data: Any) -> list[Tensor]:
    """What an index gives and the gradient of its squares; after a line that writes x, z and t."""
    if callable(line):
        return line(data)
    names = _names(data, learn=line not in WRITES)
    if line in WRITES:
        exec(line, names)
        return [names[name] + 0 for name in 'xzt']
    out = eval(line, names)
    out.square().sum().backward()
    return [out, names[line[0]].grad]


ranks = pytest.mark.parametrize('num_ranks', few([3, 2]))


def _root(num_ranks: int) -> str:
    return cut_of(_graph, num_ranks, [i * 7 % num_ranks for i in range(N)])


@ranks
@pytest.mark.parametrize('table', ['READ', 'WRITTEN'])
def test_as_torch_has_it(num_ranks: int, table: str) -> None:
    check(__name__, table, _graph(), _root(num_ranks), num_ranks=[num_ranks], tolerance=1e-9)


def _changes_copies(data: Any) -> None:
    for line in expressions(CHANGED_COPIES):
        names = _names(data, learn=False)
        with pytest.raises(ValueError, match='one was changed in place'):
            exec(f'square = x @ x.t()\n{line}\nx + 1', names)
        with pytest.raises(ValueError, match='one was changed in place'):
            pyg_sar.gather(names['x'] + 0)
        names.clear()
    with torch.inference_mode():
        h = data.x * 2
        h[:5].mul_(3)
        with pytest.raises(ValueError, match='one was changed in place'):
            h * 1
    del h
    x = data.x.clone()
    first = x[3]
    first += 1
    with pytest.raises(ValueError, match='one was changed in place'):
        data.y[3] = 2  # not the slice written back
    del x, first
    with pytest.raises(ValueError, match='by one bool'):
        data.x[True]
    with pytest.raises(ValueError, match='no index beside the mask'):
        data.z[data.z[..., 0] > 0, 1] = 0
    with pytest.raises(IndexError, match='a mask of shape'):
        data.x[MASK[:1]] = 0


def _shows_rows_that_change(data: Any) -> None:
    x = data.x.clone()
    first = x[:5]
    for change in (
        *(x.relu_, lambda: x.__setitem__(7, 0.0), lambda: x[:, 0].zero_()),
        *(lambda: torch.nn.ReLU(inplace=True)(x), lambda: torch._foreach_mul_([x], 2.0)),
    ):
        with pytest.raises(ValueError, match='of which a slice or an array was read'):
            change()
    x[9] = first[0]
    del first
    leaf = x.clone().requires_grad_()
    leaf.square().sum().backward()
    part = leaf.grad[3]
    leaf.square().sum().backward()
    with pytest.raises(ValueError, match='rows have been changed in place of which'):
        leaf.grad * part
    del part
    x.relu_()
    weight = torch.nn.Parameter(data.x.clone())
    users = weight[:5]
    with torch.no_grad():
        weight.mul_(2)  # as an optimizer does
    assert users.size(0) == 5


def _changes_edges(data: Any) -> None:
    edges = data.edge_index
    for change in (
        lambda: edges[0].clamp_(max=40),
        lambda: edges.clone().unbind(0)[0].fill_(3),
        lambda: edges.data.clamp_(max=30),
        lambda: edges[1][:, None].add_(1),
        lambda: setattr(edges, 'grad', edges),
    ):
        with pytest.raises(ValueError, match="cannot change a graph's edges in place"):
            change()
    assert int(edges[0].clone().clamp_(max=40).max()) == 40
    for line in expressions(CHANGED_EDGES):
        _changes(line, data)


def _changes_rows_of_edges(data: Any) -> None:
    for line in expressions(CHANGED_ROWS_OF_EDGES):
        _changes(line, data)


def _changes(line: str, data: Any) -> None:
    """A conv that comes after a change of a copy of edges is refused."""
    edges = data.edge_index.clone()
    conv = pyg_sar.DistributedDataParallel(SAGEConv(6, 2).double())
    exec(line, globals() | {'edges': edges})
    with pytest.raises(ValueError, match='in place'):
        conv(data.x, edges)


def _on_ranks(root: str, program: Any) -> None:
    program(pyg_sar.load_shard(root))


@ranks
@pytest.mark.parametrize('program', [_changes_copies, _shows_rows_that_change, _changes_edges])
def test_what_would_change_in_place_is_refused(num_ranks: int, program: Any) -> None:
    """A copy; rows that a slice shows; edges."""
    run_as_threads(_on_ranks, num_ranks, _root(num_ranks), program)


def _sparse(data: Any) -> list[Tensor]:
    edges = coalesce(data.edge_index)
    ones = torch.ones(edges.size(1), dtype=torch.double)
    matrix = torch.sparse_coo_tensor(edges, ones, (N, N), is_coalesced=True, check_invariants=True)
    return [matrix.to_sparse_csr() @ data.x]


def test_rows_of_edges_are_copies_on_one_process() -> None:
    _changes_rows_of_edges(pyg_sar.load_shard(_root(3)))


OF_EDGES = {'sparse': _sparse}


@ranks
@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support')
def test_compressed_matrix_of_edges(num_ranks: int) -> None:
    check(__name__, 'OF_EDGES', _graph(), _root(num_ranks), num_ranks=[num_ranks])
