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

C = 8  # channels


class Net(nn.Module):
    """Two convs with a step between them."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.step = make()
        self.first, self.second = tg.SAGEConv(6, C), tg.SAGEConv(C, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.elu(self.first(x, edge_index))
        return self.second(self.step(x, edge_index), edge_index)


def plain(call: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A step without modules."""
    return parts()(lambda m, x, e: call(x, e))


def of(
    make: Callable[[], nn.Module], call: Callable[[Any, Tensor, Tensor], Tensor]
) -> Callable[[], nn.Module]:
    """A step with a module, which it gets first."""
    return parts(inner=make)(lambda m, x, e: call(m.inner, x, e))


def pooled(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return of(make, lambda m, x, e: x + m(x, _zeros(x)))


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


def _dense(x: Tensor, e: Tensor) -> Tensor:
    return utils.to_dense_adj(e, max_num_nodes=x.size(0))[0].to(x.dtype)


def _infomax() -> nn.Module:
    return DeepGraphInfomax(
        *(C, tg.SAGEConv(C, C), lambda z, *args: z.mean(dim=0).sigmoid()),
        lambda x, e: (x.flip(0), e),
    )


def _times_summary(m: Any, x: Tensor, e: Tensor) -> Tensor:
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


SAGE = partial(tg.SAGEConv, C, C)

STEPS: dict[str, Callable[[], nn.Module]] = {
    'global_max_pool': plain(lambda x, e: x + tg.global_max_pool(x, None)),
    'DeepSetsAggregation': pooled(lambda: aggr.DeepSetsAggregation(nn.Linear(C, C))),
    'SetTransformerAggregation': pooled(lambda: aggr.SetTransformerAggregation(C)),
    'MLPAggregation': of(
        lambda: aggr.MLPAggregation(C, C, 4, num_layers=1),
        lambda m, x, e: x + m(x[:4], _zeros(x[:4])),
    ),
    'bincount of classes': plain(
        lambda x, e: x / (1 + torch.bincount(_bins(x), minlength=3)[_bins(x)])[:, None]
    ),
    'one_hot frequencies': plain(
        lambda x, e: x[:, :3].repeat(1, 3)[:, :C] * F.one_hot(_bins(x), 3).double().mean(0).max()
    ),
    'len': plain(lambda x, e: x * len(x) / 100),
    'numel': plain(lambda x, e: x * x.numel() / 1000),
    'log of the count': plain(lambda x, e: x / torch.log(torch.tensor(x.size(0) + 1.0))),
    'top half by score': plain(
        lambda x, e: x * (x[:, :1] >= x[:, 0].sort().values[x.size(0) // 2])
    ),
    'DenseGCNConv': of(lambda: tg.DenseGCNConv(C, C), lambda m, x, e: m(x, _dense(x, e))[0]),
    'DMoN': of(lambda: tg.DMoNPooling(C, 3), lambda m, x, e: x * m(x[None], _dense(x, e)[None])[3]),
    'dense_mincut_pool': plain(lambda x, e: x * tg.dense_mincut_pool(x, _dense(x, e), x[:, :3])[2]),
    'new edges': of(SAGE, lambda m, x, e: m(x, torch.stack([_zeros(x), torch.arange(x.size(0))]))),
    'a conv that is called by hand': of(SAGE, lambda m, x, e: m.propagate(e, x=(x, x))),
    'TopKPooling': of(lambda: tg.TopKPooling(C), lambda m, x, e: x + m(x, e)[0].mean(0)),
    'DeepGraphInfomax inside': of(_infomax, _times_summary),
    'heads by row': of(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda m, x, e: m(*[x.view(-1, 2, 4)] * 3)[0].flatten(1),
    ),
    'selected and put back': plain(
        lambda x, e: x.index_copy(0, (x[:, 0] > 0).nonzero()[:, 0], x[x[:, 0] > 0] * 2)
    ),
    'MedianAggregation': pooled(aggr.MedianAggregation),
    'GRUAggregation': pooled(lambda: aggr.GRUAggregation(C, C)),
    'LSTMAggregation': pooled(lambda: aggr.LSTMAggregation(C, C)),
    'SortAggregation': of(
        lambda: aggr.SortAggregation(2), lambda m, x, e: x + m(x, _zeros(x)).view(2, C).sum(0)
    ),
    'MultiheadAttention': whole_graph_layer,
    'GRU': of(lambda: nn.GRU(C, C), lambda m, x, e: m(x)[0]),
    'Conv1d': of(lambda: nn.Conv1d(C, C, 3, padding=1), lambda m, x, e: m(x.t()[None])[0].t()),
    'all inner products': of(InnerProductDecoder, lambda m, x, e: x * m.forward_all(x).mean()),
    'dense_diff_pool': plain(
        lambda x, e: x + tg.dense_diff_pool(x, _dense(x, e), x[:, :3])[0][0].mean(0)
    ),
    'a conv on dense neighbours': NearestConv,
}


def with_step(data: Any, ddp: Ddp, step: Callable[[], nn.Module]) -> Results:
    return trained(data, ddp, lambda: Net(step))


PROGRAMS = programs(with_step, STEPS)
REFUSED = programs(with_step, {'EquilibriumAggregation': pooled(lambda: Equilibrium(C, C, [8]))})
