"""Lines of programs on rows: what they give on the whole, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from as_whole import check, with_gradients
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.nn import LGConv, MemPooling, SAGEConv
from torch_geometric.utils import add_self_loops, one_hot

import pyg_sar

N, WIDTH = 40, 6
IDS = torch.tensor([1, 2, 3, 2])
FEW = torch.arange(24, dtype=torch.double).view(4, 6) - 12

Program = Callable[..., Any]


def run(program: Program, data: Any) -> Any:
    """A function of data, or of x, y and a plain parameter, whose gradients are looked at."""
    if program.__code__.co_varnames[0] != 'x':
        return program(data)
    x, w = data.x.detach().clone().requires_grad_(), torch.tensor([1.0, 2, 4, 3, 5, 6])
    return with_gradients(program(x, data.y, w.requires_grad_()), x, w)


# A cast stands for what is cast; what torch asks of two tensors is asked of the whole.
CASTS: dict[str, Program] = {
    'numbers of all rows': lambda x, y, w: x * torch.arange(N).type_as(x).view(-1, 1),
    'a mask of all rows': lambda x, y, w: x * (torch.arange(N) % 2 == 0).to(x).view(-1, 1),
    'a parameter': lambda x, y, w: x * w.type_as(x),
    'the sum of a parameter': lambda x, y, w: x * w.type_as(x).sum(),
    'the mean of a parameter': lambda x, y, w: x / w.to(x).mean(),
    'the norm of a parameter': lambda x, y, w: x / w.to(x).norm(),
    'as many numbers as a rank has': lambda x, y, w: x * torch.ones(5).to(x).sum(),
    'the largest': lambda x, y, w: x * torch.tensor([1, 5, 2]).type_as(x).max(),
    'one number': lambda x, y, w: x + torch.tensor(2).type_as(x),
    'a matrix': lambda x, y, w: x @ torch.eye(WIDTH).type_as(x),
    'a softmax': lambda x, y, w: x * torch.softmax(w.type_as(y.double()), 0),
    'labels of another sharding': lambda x, y, w: x[y > 1].sum() * y.type_as(x[y > 1]).sum(),
    'rows as a parameter': lambda x, y, w: y.type_as(w).mean() * x,
    'rows as rows of more dimensions': lambda x, y, w: y.to(x).unsqueeze(1) * x,
    'a slice of rows': lambda x, y, w: x[:2].type_as(y.double()).sum() * x,
    'rows turned': lambda x, y, w: x.t().type_as(y.double()).t() * x,
    'ids': lambda x, y, w: x[torch.tensor([0.0, 4.0]).type_as(y)].sum() * x,
    'a new tensor': lambda x, y, w: x * x.new_tensor([1, 2, 3, 4, 5, 6]),
    'new zeros': lambda x, y, w: x + w.new_ones(WIDTH),
    'expanded': lambda x, y, w: w.expand_as(x) * x,
    'expanded numbers of all rows': lambda x, y, w: torch.arange(N).view(-1, 1).expand_as(x) * x,
    'viewed': lambda x, y, w: torch.arange(N * WIDTH).view_as(x) * x,
    'reshaped': lambda x, y, w: torch.arange(N * WIDTH).reshape_as(x) + x,
    'copied from': lambda x, y, w: torch.zeros(N, WIDTH).double().copy_(x.detach()) * x,
    'copied to': lambda x, y, w: torch.zeros_like(x).copy_(w) * x,
    'which type': lambda x, y, w: x.to(torch.result_type(x, y)),
    'all true': lambda x, y, w: x * torch._is_all_true(y >= 0) + torch._is_all_true(y > 0),
    'any true': lambda x, y, w: x * torch._is_any_true(y == 2) + torch._is_any_true(y > 9),
    'equal': lambda x, y, w: x * torch.equal(y, small_graph().y),
    'all close': lambda x, y, w: x * torch.allclose(x, x + 1e-12) + torch.allclose(x, x * 2),
    'a distribution': lambda x, y, w: torch.distributions.Normal(x, w.exp()).log_prob(x * 2),
    'a distribution of classes': lambda x, y, w: torch.distributions.Categorical(
        logits=x
    ).entropy(),
    'probabilities': lambda x, y, w: torch.distributions.Bernoulli(x.sigmoid()).log_prob(
        (x > 0).to(x)
    ),
}


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_casts(kind: str) -> None:
    check(__name__, 'CASTS', kind=kind, tolerance=1e-6)  # the parameter is float32


def _layer(kind: Callable[..., torch.nn.Module], *args: Any) -> Any:
    torch.manual_seed(0)
    return kind(*args).double()


def _scatter_std(x: Any, y: Any, w: Any) -> Any:
    import torch_scatter

    return torch_scatter.scatter_std(x, y, 0)


def _scatter_mean(x: Any, y: Any, w: Any) -> Any:
    import torch_scatter

    return torch_scatter.scatter(x, y, 0, reduce='mean')


# Layers that look at one row at a time, and operators of torch_scatter.
LAYERS: dict[str, Program] = {
    'Conv1d of a batch': lambda x, y, w: _layer(torch.nn.Conv1d, 6, 4, 1)(x.t()[None])[0].t(),
    'Conv1d': lambda x, y, w: _layer(torch.nn.Conv1d, 6, 4, 1)(x.t()),
    'Conv2d': lambda x, y, w: _layer(torch.nn.Conv2d, 6, 4, (1, 2))(
        torch.stack([x.t(), 2 * x.t()], 2)[None]
    ),
    'MemPooling': lambda x, y, w: _layer(MemPooling, 6, 4, 2, 3)(x)[0],
    'scatter_add': lambda x, y, w: x.scatter_add(0, IDS[:, None].expand(4, 6), FEW).square(),
    'scatter_reduce': lambda x, y, w: (
        x.scatter_reduce(0, IDS[:, None].expand(4, 6), FEW, 'amax') * x
    ),
    'max of Python': lambda x, y, w: max(x[:, 0]),
    'gather': lambda x, y, w: x.sum(0)[None].expand(3, 6).gather(0, y[:, None].expand(-1, 6)) * x,
}
SCATTERED = {'scatter_std': _scatter_std, 'scatter': _scatter_mean}


@pytest.mark.parametrize('kind', ['uneven', 'empty part'])
def test_layers_and_scatters(kind: str) -> None:
    check(__name__, 'LAYERS', kind=kind, tolerance=1e-10)
    pytest.importorskip('torch_scatter')
    check(__name__, 'SCATTERED', kind=kind, tolerance=1e-10)


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


# Plain tensors of the whole graph meet rows.
MEETINGS: dict[str, Program] = {
    'embedding': _embedded,
    'one_hot': _one_hot,
    'negatives': _pairs,
    'loops': _loops,
    'all edges': lambda data: [data.edge_index, data.edge_index.flip(0)],
}


def test_plain_tensors_beside_rows() -> None:
    check(__name__, 'MEETINGS', tolerance=1e-10)


def _after_inference(read: Program) -> Program:
    """A read in inference mode first, then in training by the same index."""

    def program(data: Any) -> Any:
        with torch.inference_mode():
            read(data.x, data)
        leaf = data.x.detach().clone().requires_grad_()
        return with_gradients(read(leaf, data), leaf)

    return program


READS: dict[str, Program] = {
    'mask': lambda x, d: x[d.train_mask],
    'mask of a mask': lambda x, d: x[d.train_mask][d.train_mask[d.train_mask]],
    'ids': lambda x, d: x[d.chosen],
    'ids that are rows': lambda x, d: x[d.other],
    'one row': lambda x, d: x[3],
    'slice': lambda x, d: x[2:9:3],
    'index_select': lambda x, d: x.index_select(0, d.chosen),
    'sources of edges': lambda x, d: x[d.edge_index[0]],
    'edges of a mask': lambda x, d: x[d.edge_index[:, d.edge_mask][1]],
    'joined': lambda x, d: torch.cat([x, x[d.train_mask]])[d.chosen],
    'repeated': lambda x, d: x.repeat_interleave(2, 0)[d.train_mask.repeat_interleave(2)],
    'mask of numbers': lambda x, d: x[d.numbers],
    'masked_fill': lambda x, d: x.masked_fill(d.train_mask.unsqueeze(1), 0.5),
    'where': lambda x, d: torch.where(d.train_mask.unsqueeze(1), x, x.mean(0)),
    'index_add': lambda x, d: torch.zeros_like(x).index_add(0, d.edge_index[1], x[d.edge_index[0]]),
    'top': lambda x, d: x[:, 0].topk(5).values,
}
AFTER_INFERENCE = {name: _after_inference(read) for name, read in READS.items()}


def test_training_after_inference(tmp_path: Path) -> None:
    data = small_graph()
    data.numbers, data.other = data.x > 0, (torch.arange(N) * 7) % N
    data.edge_mask = torch.arange(data.num_edges) % 3 > 0
    data.chosen = torch.randint(N, (7,), generator=torch.Generator().manual_seed(1))
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts')
    check(__name__, 'AFTER_INFERENCE', data, str(tmp_path / 'parts'))


VIEWS: dict[str, Program] = {
    'as it is': lambda x: x,
    'a column': lambda x: x[:, 1],
    'transposed': lambda x: x.t(),
    'every other column': lambda x: x[:, ::2],
    'one of them as a matrix': lambda x: x[:, 2:3],
    'chosen rows, one of which is alone': lambda x: x[x[:, 0] < 16][:, 1],
    'chosen rows transposed': lambda x: x[(x[:, 0] > 13) & (x[:, 0] < 20)].t(),
    'with a dimension more': lambda x: x.unsqueeze(1).transpose(1, 2),
}
DRAWS: dict[str, Program] = {
    'rand_like': torch.rand_like,
    'randn_like': torch.randn_like,
    'randint_like': lambda x: torch.randint_like(x, 50),
    'normal_': lambda x: x.clone().normal_(),
    'normal_ of the view': lambda x: x.normal_(1, 2),
    'uniform_ of the view': lambda x: x.uniform_(),
}


def _drawn(data: Any) -> list[Any]:
    torch.manual_seed(0)
    return [
        draw(view(data.n_id.float().view(-1, 1) + torch.zeros(N, 5)))
        for view in VIEWS.values()
        for draw in DRAWS.values()
    ]


DRAWN = {'draws': _drawn}


@pytest.mark.parametrize('kind', ['uneven', 'one reader'])
def test_draws_are_those_of_one_process(kind: str) -> None:
    """In every layout, also on a rank of one row."""
    graph = small_graph()
    graph.n_id = torch.arange(N)
    check(__name__, 'DRAWN', graph, kind=kind, tolerance=0.0)
