"""Lines of programs on rows: what they give on the whole, with their gradients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from as_whole import check, with_gradients
from expressions import expressions
from on_ranks import on_ranks
from small_graphs import small_graph
from torch import Tensor
from torch.nn import Conv1d, Conv2d
from torch_geometric.nn import GCNConv, LGConv, MemPooling, SAGEConv
from torch_geometric.utils import add_self_loops, one_hot

import pyg_sar

N, WIDTH = 40, 6
IDS = torch.tensor([1, 2, 3, 2])
FEW = torch.arange(24, dtype=torch.double).view(4, 6) - 12
KINDS = {kind.__name__: kind for kind in (Conv1d, Conv2d, MemPooling)}

Program = Callable[..., Any]


def run(program: Program | str, data: Any) -> Any:
    """A function of data, or an expression of x, y and a parameter w, with their gradients."""
    if callable(program):
        return program(data)
    x, w = data.x.detach().clone().requires_grad_(), torch.tensor([1.0, 2, 4, 3, 5, 6])
    names = globals() | KINDS | {'x': x, 'y': data.y, 'w': w.requires_grad_()}
    return with_gradients(eval(program, names), x, w)


# A cast stands for what is cast; what torch asks of two tensors is asked of the whole.
CASTS = """
x * torch.arange(N).type_as(x).view(-1, 1); x * (torch.arange(N) % 2 == 0).to(x).view(-1, 1)
x * w.type_as(x); x * w.type_as(x).sum(); x / w.to(x).mean(); x / w.to(x).norm()
x * torch.ones(5).to(x).sum(); x * torch.tensor([1, 5, 2]).type_as(x).max()
x + torch.tensor(2).type_as(x); x @ torch.eye(WIDTH).type_as(x)
x * torch.softmax(w.type_as(y.double()), 0); x[y > 1].sum() * y.type_as(x[y > 1]).sum()
y.type_as(w).mean() * x; y.to(x).unsqueeze(1) * x; x[:2].type_as(y.double()).sum() * x
x.t().type_as(y.double()).t() * x; x[torch.tensor([0.0, 4.0]).type_as(y)].sum() * x
x * x.new_tensor([1, 2, 3, 4, 5, 6]); x + w.new_ones(WIDTH); w.expand_as(x) * x
torch.arange(N).view(-1, 1).expand_as(x) * x; torch.arange(N * WIDTH).view_as(x) * x
torch.arange(N * WIDTH).reshape_as(x) + x; torch.zeros(N, WIDTH).double().copy_(x.detach()) * x
torch.zeros_like(x).copy_(w) * x; x.to(torch.result_type(x, y))
x * torch._is_all_true(y >= 0) + torch._is_all_true(y > 0)
x * torch._is_any_true(y == 2) + torch._is_any_true(y > 9); x * torch.equal(y, small_graph().y)
x * torch.allclose(x, x + 1e-12) + torch.allclose(x, x * 2)
torch.distributions.Normal(x, w.exp()).log_prob(x * 2)
torch.distributions.Categorical(logits=x).entropy()
torch.distributions.Bernoulli(x.sigmoid()).log_prob((x > 0).to(x))
"""


def layer(kind: Callable[..., torch.nn.Module], *args: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args).double()


# Layers that look at one row at a time, and operators of torch_scatter.
LAYERS = """
layer(Conv1d, 6, 4, 1)(x.t()[None])[0].t(); layer(Conv1d, 6, 4, 1)(x.t())
layer(Conv2d, 6, 4, (1, 2))(torch.stack([x.t(), 2 * x.t()], 2)[None])
layer(MemPooling, 6, 4, 2, 3)(x)[0]; max(x[:, 0])
x.scatter_add(0, IDS[:, None].expand(4, 6), FEW).square()
x.scatter_reduce(0, IDS[:, None].expand(4, 6), FEW, 'amax') * x
x.sum(0)[None].expand(3, 6).gather(0, y[:, None].expand(-1, 6)) * x
"""
SCATTERED = """
torch_scatter.scatter_std(x, y, 0); torch_scatter.scatter(x, y, 0, reduce='mean')
"""
torch_scatter = sys.modules.get('torch_scatter')  # PyG imports it if it is there


TOLERANCES = {'CASTS': 1e-6, 'LAYERS': 1e-10}  # the parameter of casts is float32
TOLERANCES |= {} if torch_scatter is None else {'SCATTERED': 1e-10}


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
@pytest.mark.parametrize('table', TOLERANCES)
def test_those_of_the_whole(table: str, kind: str) -> None:
    check(__name__, table, kind=kind, tolerance=TOLERANCES[table])


def _embedded(data: Any) -> list[Any]:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(data.num_nodes, 4, dtype=torch.float64))
    conv = pyg_sar.DistributedDataParallel(LGConv())
    return with_gradients(conv(weight, data.edge_index), weight)


def _one_hot(data: Any) -> list[Any]:
    made = one_hot(data.y[data.train_mask], num_classes=3)
    return [made.sum(dim=0), made * 2.0]


def _pairs(data: Any) -> Any:
    seeds = {'num_nodes': data.num_nodes} if type(data.edge_index) is Tensor else {}
    others = pyg_sar.negative_sampling(data.edge_index, seed=1, **seeds)
    src, dst = torch.cat([data.edge_index, others], dim=1)
    return (data.x[src] * data.x[dst]).sum()


def _loops(data: Any) -> Any:
    """Of the nodes that have edges: fewer than there are."""
    edge_index, _ = add_self_loops(data.edge_index)
    torch.manual_seed(0)
    conv = pyg_sar.DistributedDataParallel(SAGEConv(data.num_features, 4).double())
    return conv(data.x, edge_index)


class WithRows(torch.nn.Module):
    """A model that holds rows."""

    def __init__(self, x: Any) -> None:
        super().__init__()
        self.x, self.conv = x, GCNConv(WIDTH, 3)

    def forward(self, edge_index: Any) -> Any:
        return self.conv(self.x, edge_index)


def _held(data: Any) -> Any:
    torch.manual_seed(0)
    model = WithRows(torch.nn.Buffer(data.x.clone())).double()
    return pyg_sar.DistributedDataParallel(model)(data.edge_index)


@on_ranks(by='threads')
def test_rows_are_no_parameter(data: Any) -> None:
    with pytest.raises(ValueError, match='NodeEmbedding'):
        pyg_sar.DistributedDataParallel(WithRows(torch.nn.Parameter(data.x.clone())))


# Plain tensors of the whole graph meet rows.

MEETINGS: dict[str, Program] = {
    'embedding': _embedded,
    'one_hot': _one_hot,
    'negatives': _pairs,
    'loops': _loops,
    'held by a model': _held,
    'all edges': lambda data: [data.edge_index, data.edge_index.flip(0)],
}


def test_plain_tensors_beside_rows() -> None:
    check(__name__, 'MEETINGS', tolerance=1e-10)


READS = """
x[d.train_mask]; x[d.train_mask][d.train_mask[d.train_mask]]; x[d.chosen]; x[d.other]; x[3]
x[2:9:3]; x.index_select(0, d.chosen); x[d.edge_index[0]]; x[d.edge_index[:, d.edge_mask][1]]
x[d.numbers]; torch.cat([x, x[d.train_mask]])[d.chosen]; x[:, 0].topk(5).values
x.repeat_interleave(2, 0)[d.train_mask.repeat_interleave(2)]
x.masked_fill(d.train_mask.unsqueeze(1), 0.5); torch.where(d.train_mask.unsqueeze(1), x, x.mean(0))
torch.zeros_like(x).index_add(0, d.edge_index[1], x[d.edge_index[0]])
"""


def _after_inference(expression: str, data: Any) -> Any:
    """A read in inference mode first, then in training by the same index."""
    with torch.inference_mode():
        eval(expression, globals(), {'x': data.x, 'd': data})
    leaf = data.x.detach().clone().requires_grad_()
    return with_gradients(eval(expression, globals(), {'x': leaf, 'd': data}), leaf)


AFTER_INFERENCE = {each: partial(_after_inference, each) for each in expressions(READS)}


def test_training_after_inference(tmp_path: Path) -> None:
    data = small_graph()
    data.numbers, data.other = data.x > 0, (torch.arange(N) * 7) % N
    data.edge_mask = torch.arange(data.num_edges) % 3 > 0
    data.chosen = torch.randint(N, (7,), generator=torch.Generator().manual_seed(1))
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts')
    check(__name__, 'AFTER_INFERENCE', data, str(tmp_path / 'parts'))


VIEWS = """
x; x[:, 1]; x.t(); x[:, ::2]; x[:, 2:3]; x[x[:, 0] < 16][:, 1]; x.unsqueeze(1).transpose(1, 2)
x[(x[:, 0] > 13) & (x[:, 0] < 20)].t()
"""
DRAWS = """
torch.rand_like(x); torch.randn_like(x); torch.randint_like(x, 50); x.clone().normal_()
x.normal_(1, 2); x.uniform_()
"""


def _drawn(data: Any) -> list[Any]:
    torch.manual_seed(0)
    found = []
    for view, draw in product(expressions(VIEWS), expressions(DRAWS)):
        x = data.n_id.float().view(-1, 1) + torch.zeros(N, 5)
        found.append(eval(draw, {'torch': torch, 'x': eval(view, {'x': x})}))
    return found


DRAWN = {'draws': _drawn}


@pytest.mark.parametrize('kind', ['uneven', 'one reader'])
def test_draws_are_those_of_one_process(kind: str) -> None:
    """In every layout, also on a rank of one row."""
    graph = small_graph()
    graph.n_id = torch.arange(N)
    check(__name__, 'DRAWN', graph, kind=kind, tolerance=0.0)
