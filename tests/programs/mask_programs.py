"""Which nodes a loss is of: masks, ids, ranges and draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, parts, programs
from three_steps import descend, inner, model_of, trained, weights
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, mask_to_index

CHOSEN: dict[str, Callable[[Data], Any]] = {
    'mask_by_features': lambda data: data.x[:, 0].gt(data.x[:, 0].mean()) ^ data.train_mask,
    'masks_of_bytes': lambda data: data.train_mask.byte().bool(),
    'functions_of_pyg': lambda data: index_to_mask(
        mask_to_index(data.train_mask), size=data.num_nodes
    ),
    'transform_random_node_split': lambda data: (
        T.RandomNodeSplit(num_val=10, num_test=20)(data).train_mask
    ),
}


def on_chosen(data: Data, ddp: Ddp, choose: Callable[[Data], Any]) -> Results:
    torch.manual_seed(7)
    chosen = choose(data)
    found = trained(
        data, ddp, loss=lambda out: F.cross_entropy(out[chosen], data.y[chosen]), lr=0.1
    )
    return {'chosen': chosen, 'rows': data.x[chosen].sum(0)} | found


PROGRAMS = programs(on_chosen, CHOSEN)


def columns_of_masks(data: Data, ddp: Ddp) -> Results:
    """Ten splits as in WebKB: masks of two dimensions."""
    masks = torch.stack([data.train_mask, data.val_mask, ~data.test_mask], dim=1)
    return {
        str(i): on_chosen(data, ddp, lambda data, i=i: masks[:, i]) for i in range(masks.size(1))
    }


def pseudo_labels(data: Data, ddp: Ddp) -> Results:
    """Confident predictions become labels of other nodes, the most uncertain ones join them."""
    model = model_of(ddp)
    y, mask = data.y.clone(), data.train_mask.clone()

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index)[mask], y[mask])

    losses = descend(loss_of, model)
    with torch.no_grad():
        p = model(data.x, data.edge_index).softmax(-1)
    conf, pred = p.max(dim=-1)
    sure = (conf > 0.6) & ~mask
    y[sure] = pred[sure]
    mask |= sure
    entropy = -(p * p.log()).sum(dim=-1).masked_fill(mask, -1)
    mask[entropy.topk(10).indices] = True
    return {'sure': int(sure.sum()), 'losses': losses + descend(loss_of, model), 'y': y, 'm': mask}


def masked_features(data: Data, ddp: Ddp) -> Results:
    """Features are hidden behind a learned token, by writing and by where, and reconstructed."""

    @parts(token=lambda: torch.nn.Parameter(torch.zeros(1, 6)), net=(Net, 6, 8, 6))
    def net(m: Any, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
        x = x.clone()
        x[mask] = m.token
        x = torch.where(data.val_mask.unsqueeze(-1), 2 * m.token, x)
        return m.net(x, edge_index) * ~data.train_mask.unsqueeze(-1)

    mask = data.test_mask

    def loss(out: Tensor) -> Tensor:
        cosine = F.cosine_similarity(out[mask], data.x[mask], dim=-1)
        other = (F.normalize(out[data.val_mask]) * F.normalize(data.x[data.val_mask])).sum(-1)
        return (1 - cosine).pow(2).mean() + (1 - other).pow(3).mean()

    return trained(data, ddp, net, mask, loss=loss)


def train_ids_by_where(data: Data, ddp: Ddp) -> Results:
    """Ids of masks: as many, parts of them, back to masks."""
    (ids,) = torch.where(data.train_mask)
    other = data.val_mask.nonzero().squeeze(1)

    def loss(out: Tensor) -> Tensor:
        return F.cross_entropy(out[ids], data.y[ids]) + 0.1 * out[other].pow(2).mean()

    return {
        'counts': (ids.numel(), len(other)),
        'mask': index_to_mask(ids, size=data.num_nodes),
        'list': sorted(data.y[ids].tolist()),
    } | trained(data, ddp, loss=loss)


def rows_of_two_selections(data: Data, ddp: Ddp) -> Results:
    """That are as many, side by side; pieces of rows, single ones, ranges and strides."""
    first = data.train_mask.nonzero().view(-1)[:15]
    second = data.test_mask.nonzero().view(-1)[:15]
    x = data.x
    a, b, c = x.tensor_split(3)
    d, *rest = data.y.chunk(4)
    return {
        'agree': (data.y[first] == data.y[second]).sum(),
        'distance': (x[first] - x[second]).norm(dim=1).sum(),
        'rows': torch.cat([x[first], x[second]], dim=1)[:5],
        'pieces': [a.sum(0), b.mean(0), c, d, *(r.sum() for r in rest)],
        'split': [part.mean().item() for part in torch.split(x, 30)],
        'one': [x[5], x[-1], x[17, 3].item(), data.y[88].item()],
        'range': [x[10:20], x[::7]],
        'cumsum': x[:, 0].cumsum(0)[-1].item(),
        'rolled': x.roll(1, dims=0)[0],
    }


def mask_of_draws_in_every_step(data: Data, ddp: Ddp) -> Results:
    """UniMP: masked labels go in, the rest is learned; another part is masked in every step."""

    @parts(emb=(torch.nn.Embedding, 3, 6), net=Net)
    def net(m: Any, x: Tensor, edge_index: Tensor, known: Tensor) -> Tensor:
        x = x.clone()
        x[known] += m.emb(data.y[known])
        return m.net(x, edge_index)

    model = model_of(ddp, net)

    def loss_of() -> Tensor:
        known = data.train_mask & (torch.rand(data.num_nodes) < 0.6)
        asked = data.train_mask & ~known
        return F.cross_entropy(model(data.x, data.edge_index, known)[asked], data.y[asked])

    return {'losses': descend(loss_of, model), 'emb': inner(model).emb.weight, 'w': weights(model)}
