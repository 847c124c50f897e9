"""What users write between two convs, and inside of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Results, parts, programs
from three_steps import trained
from torch import Tensor, nn
from torch_geometric import nn as tg
from torch_geometric import utils
from torch_geometric.nn import aggr
from torch_geometric.nn.models import DeepGraphInfomax, InnerProductDecoder

Step = Callable[[Tensor, Tensor], Tensor]
C = 8  # channels


class Net(nn.Module):
    """Two convs with a step between them."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.first, self.second = tg.SAGEConv(6, C), tg.SAGEConv(C, 3)
        self.step = step

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        x = self.step(x, edge_index)
        return self.second(x, edge_index)


class Plain(nn.Module):
    """A step without modules."""

    def __init__(self, function: Step) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.function(x, edge_index)


class Of(nn.Module):
    """A step with modules `m`."""

    def __init__(self, call: Callable[[Any, Tensor, Tensor], Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.inner = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        self.call = call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.call(self.inner, x, edge_index)


@parts(attention=partial(nn.MultiheadAttention, C, 2, batch_first=True), norm=(nn.LayerNorm, C))
def whole_graph_layer(m: Any, x: Tensor, edge_index: Tensor) -> Tensor:
    """A transformer layer over the nodes, as in GPS."""
    dense, mask = utils.to_dense_batch(x)
    out = m.attention(dense, dense, dense, key_padding_mask=~mask)[0][mask]
    return m.norm(x + out)


class Equilibrium(aggr.EquilibriumAggregation):
    """In float64; PyG's begins in float32."""

    def init_output(self, dim_size: int) -> Tensor:
        return super().init_output(dim_size).double()


def _zeros(x: Tensor) -> Tensor:
    return x.new_zeros(x.size(0), dtype=torch.int64)


def _bins(x: Tensor) -> Tensor:
    return (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def _pooled(pool: Any) -> nn.Module:
    return Of(lambda m, x, e: x + m(x, _zeros(x)), pool)


def _dense(x: Tensor, e: Tensor) -> Tensor:
    return utils.to_dense_adj(e, max_num_nodes=x.size(0))[0].to(x.dtype)


def _infomax(m: Any, x: Tensor, e: Tensor) -> Tensor:
    z, _, summary = m(x, e)
    return z * summary


class NearestConv(tg.MessagePassing):
    """Looks for its own neighbours, as DynamicEdgeConv does."""

    def __init__(self) -> None:
        super().__init__(aggr='max')
        self.lin = nn.Linear(2 * C, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        nearest = torch.cdist(x, x).topk(4, largest=False).indices
        col = torch.arange(x.size(0)).repeat_interleave(4)
        return self.propagate(torch.stack([nearest.flatten(), col]), x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.lin(torch.cat([x_i, x_j - x_i], dim=-1))


STEPS: dict[str, Callable[[], nn.Module]] = {
    'global_max_pool': lambda: Plain(lambda x, e: x + tg.global_max_pool(x, None)),
    'DeepSetsAggregation': lambda: _pooled(aggr.DeepSetsAggregation(nn.Linear(C, C))),
    'SetTransformerAggregation': lambda: _pooled(aggr.SetTransformerAggregation(C)),
    'MLPAggregation': lambda: Of(
        lambda m, x, e: x + m(x[:4], _zeros(x[:4])),
        aggr.MLPAggregation(C, C, 4, num_layers=1),
    ),
    'bincount of classes': lambda: Plain(
        lambda x, e: x / (1 + torch.bincount(_bins(x), minlength=3)[_bins(x)])[:, None]
    ),
    'one_hot frequencies': lambda: Plain(
        lambda x, e: x[:, :3].repeat(1, 3)[:, :C] * F.one_hot(_bins(x), 3).double().mean(0).max()
    ),
    'len': lambda: Plain(lambda x, e: x * len(x) / 100),
    'numel': lambda: Plain(lambda x, e: x * x.numel() / 1000),
    'log of the count': lambda: Plain(lambda x, e: x / torch.log(torch.tensor(x.size(0) + 1.0))),
    'top half by score': lambda: Plain(
        lambda x, e: x * (x[:, :1] >= x[:, 0].sort().values[x.size(0) // 2])
    ),
    'DenseGCNConv': lambda: Of(lambda m, x, e: m(x, _dense(x, e))[0], tg.DenseGCNConv(C, C)),
    'DMoN': lambda: Of(lambda m, x, e: x * m(x[None], _dense(x, e)[None])[3], tg.DMoNPooling(C, 3)),
    'dense_mincut_pool': lambda: Plain(
        lambda x, e: x * tg.dense_mincut_pool(x, _dense(x, e), x[:, :3])[2]
    ),
    'new edges': lambda: Of(
        lambda m, x, e: m(x, torch.stack([_zeros(x), torch.arange(x.size(0))])), tg.SAGEConv(C, C)
    ),
    'a conv that is called by hand': lambda: Of(
        lambda m, x, e: m.propagate(e, x=(x, x)), tg.SAGEConv(C, C)
    ),
    'TopKPooling': lambda: Of(lambda m, x, e: x + m(x, e)[0].mean(0), tg.TopKPooling(C)),
    'DeepGraphInfomax inside': lambda: Of(
        _infomax,
        DeepGraphInfomax(
            C,
            tg.SAGEConv(C, C),
            lambda z, *args: z.mean(dim=0).sigmoid(),
            lambda x, e: (x.flip(0), e),
        ),
    ),
    'heads by row': lambda: Of(
        lambda m, x, e: m(x.view(-1, 2, 4), x.view(-1, 2, 4), x.view(-1, 2, 4))[0].flatten(1),
        nn.MultiheadAttention(4, 2, batch_first=True),
    ),
    'selected and put back': lambda: Plain(
        lambda x, e: x.index_copy(0, (x[:, 0] > 0).nonzero()[:, 0], x[x[:, 0] > 0] * 2)
    ),
}

REFUSED_STEPS: dict[str, Callable[[], nn.Module]] = {
    'MedianAggregation': lambda: _pooled(aggr.MedianAggregation()),
    'GRUAggregation': lambda: _pooled(aggr.GRUAggregation(C, C)),
    'LSTMAggregation': lambda: _pooled(aggr.LSTMAggregation(C, C)),
    'SortAggregation': lambda: Of(
        lambda m, x, e: x + m(x, _zeros(x)).view(2, C).sum(0), aggr.SortAggregation(2)
    ),
    'EquilibriumAggregation': lambda: _pooled(Equilibrium(C, C, [8])),
    'MultiheadAttention': whole_graph_layer,
    'GRU': lambda: Of(lambda m, x, e: m(x)[0], nn.GRU(C, C)),
    'Conv1d': lambda: Of(lambda m, x, e: m(x.t()[None])[0].t(), nn.Conv1d(C, C, 3, padding=1)),
    'all inner products': lambda: Of(
        lambda m, x, e: x * m.forward_all(x).mean(), InnerProductDecoder()
    ),
    'dense_diff_pool': lambda: Plain(
        lambda x, e: x + tg.dense_diff_pool(x, _dense(x, e), x[:, :3])[0][0].mean(0)
    ),
    'a conv on dense neighbours': NearestConv,
}


def with_step(data: Any, ddp: Ddp, step: Callable[[], nn.Module]) -> Results:
    return trained(data, ddp, lambda: Net(step()))


PROGRAMS = programs(with_step, STEPS)
REFUSED = programs(with_step, REFUSED_STEPS)
