"""Which nodes train: masks by arithmetic, lists of ids, random splits, pseudo-labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, weights
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.utils import index_to_mask, mask_to_index


def trained(data: Data, ddp: Ddp, chosen: Tensor | slice, y: Tensor | None = None) -> Results:
    """Three steps on these nodes."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    y = data.y if y is None else y

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index)[chosen], y[chosen])

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def not_test(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, ~data.test_mask)


def either_and_not(data: Data, ddp: Ddp) -> Results:
    mask = (data.train_mask | data.val_mask) & (data.y != 2)
    return {'count': mask.sum()} | trained(data, ddp, mask)


def mask_by_features(data: Data, ddp: Ddp) -> Results:
    mask = data.x[:, 0].gt(data.x[:, 0].mean()) ^ data.train_mask
    return {'mask': mask} | trained(data, ddp, mask)


def mask_by_degree(data: Data, ddp: Ddp) -> Results:
    deg = torch.bincount(data.edge_index[1], minlength=data.num_nodes)
    mask = deg >= deg.double().mean()
    return {'mask': mask} | trained(data, ddp, mask)


def index_of_where(data: Data, ddp: Ddp) -> Results:
    index = torch.where(data.train_mask)[0]
    return {'size': index.shape[0]} | trained(data, ddp, index)


def functions_of_pyg(data: Data, ddp: Ddp) -> Results:
    index = mask_to_index(data.train_mask)
    mask = index_to_mask(index, size=data.num_nodes)
    return {'same': torch.equal(mask, data.train_mask)} | trained(data, ddp, mask)


@by_order
def first_nodes(data: Data, ddp: Ddp) -> Results:
    """As in Planetoid's files: ranges of ids."""
    return trained(data, ddp, torch.arange(40))


@by_order
def slice_of_first_nodes(data: Data, ddp: Ddp) -> Results:
    return trained(data, ddp, slice(0, 40))


@by_order
def list_of_ids(data: Data, ddp: Ddp) -> Results:
    ids = torch.tensor([5, 80, 17, 44, 2, 61, 61, 9])
    return {'y': data.y[ids], 'x': data.x[ids]} | trained(data, ddp, ids)


@by_order
def random_split(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(7)
    perm = torch.randperm(data.num_nodes)
    train, test = perm[: data.num_nodes // 2], perm[data.num_nodes // 2 :]
    mask = torch.zeros(data.num_nodes, dtype=torch.bool)
    mask[train] = True
    return {'test': data.y[test].bincount()} | trained(data, ddp, mask)


@by_order
def random_index(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(7)
    return trained(data, ddp, torch.randperm(data.num_nodes)[:30])


@by_order
def random_mask(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(7)
    mask = torch.rand(data.num_nodes) < 0.4
    return {'mask': mask} | trained(data, ddp, mask)


@by_order
def transform_random_node_split(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(7)
    data = T.RandomNodeSplit(num_val=10, num_test=20)(data)
    return {'count': int(data.train_mask.sum())} | trained(data, ddp, data.train_mask)


@by_order
def some_of_every_class(data: Data, ddp: Ddp) -> Results:
    """Five nodes a class, drawn; the Planetoid split by hand."""
    torch.manual_seed(7)
    index = []
    for c in range(3):
        ids = (data.y == c).nonzero().view(-1)
        index.append(ids[torch.randperm(ids.size(0))[:5]])
    return trained(data, ddp, torch.cat(index))


def columns_of_masks(data: Data, ddp: Ddp) -> Results:
    """Ten splits as in WebKB: masks of two dimensions."""
    masks = torch.stack([data.train_mask, data.val_mask, ~data.test_mask], dim=1)
    results = [trained(data, ddp, masks[:, i])['losses'] for i in range(masks.size(1))]
    return {'losses': results}


def pseudo_labels(data: Data, ddp: Ddp) -> Results:
    """Confident predictions become labels of other nodes."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    y, mask = data.y.clone(), data.train_mask.clone()

    def loss_of() -> Tensor:
        return F.cross_entropy(model(data.x, data.edge_index)[mask], y[mask])

    losses = descend(loss_of, model)
    with torch.no_grad():
        conf, pred = model(data.x, data.edge_index).softmax(-1).max(dim=-1)
    sure = (conf > 0.6) & ~mask
    y[sure] = pred[sure]
    mask |= sure
    return {'sure': int(sure.sum()), 'losses': losses + descend(loss_of, model), 'y': y}


def most_uncertain_nodes(data: Data, ddp: Ddp) -> Results:
    """Active learning: ten nodes of the greatest entropy join the training set."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    mask = data.train_mask.clone()
    with torch.no_grad():
        p = model(data.x, data.edge_index).softmax(dim=-1)
    entropy = -(p * p.log()).sum(dim=-1).masked_fill(mask, -1)
    mask[entropy.topk(10).indices] = True
    return {'entropy': entropy, 'mask': mask} | trained(data, ddp, mask)


def noisy_labels(data: Data, ddp: Ddp) -> Results:
    """Small losses first: half of the training nodes, by rank of their losses."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    count = int(data.train_mask.sum()) // 2

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)[data.train_mask]
        values = F.cross_entropy(out, data.y[data.train_mask], reduction='none')
        return values.topk(count, largest=False).values.mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def labels_as_features(data: Data, ddp: Ddp) -> Results:
    """Known labels go in where the mask is set (UniMP), by item assignment."""
    known = torch.zeros(data.num_nodes, 3, dtype=torch.double)
    known[data.train_mask] = F.one_hot(data.y[data.train_mask], 3).double()
    data.x = torch.cat([data.x, known], dim=-1)
    return {'known': known} | trained(data, ddp, data.val_mask)


def masked_features(data: Data, ddp: Ddp) -> Results:
    """Features of test nodes are hidden behind a learned token and reconstructed."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.net = torch.nn.Parameter(torch.zeros(1, 6)), Net(6, 8, 6)

        def forward(self, x: Tensor, edge_index: Tensor, mask: Tensor) -> Tensor:
            x = x.clone()
            x[mask] = self.token
            return self.net(x, edge_index)

    torch.manual_seed(0)
    model = ddp(Masked().double())
    mask = data.test_mask

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index, mask)
        return (1 - F.cosine_similarity(out[mask], data.x[mask], dim=-1)).pow(2).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}
