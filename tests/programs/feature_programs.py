"""Features made from features, labels, degrees and other nodes, before training."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, named, programs
from three_steps import trained
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import degree, subgraph


def drawing_nothing(data: Data, ddp: Ddp) -> Results:
    """What is off leaves the generator as it is."""
    torch.manual_seed(0)
    off = F.dropout(data.x, 0.5, False), F.dropout(data.x, 0.0), F.rrelu(data.x)
    rows, one = (data.x, data.x[..., None]), data.x[..., None, None]
    of_channels = [
        drop(each.clone(), p, training, inplace)
        for drop, many in {
            F.dropout1d: rows,
            F.dropout2d: (one,),
            F.dropout3d: (one, one[..., None]),
            F.feature_alpha_dropout: (*rows, one),
        }.items()
        for each in many
        for p, training, inplace in ((0.5, False, False), (0.5, False, True), (0.0, True, True))
    ]
    return {'rows': off, 'of channels': of_channels, 'later': torch.rand(3)}


def mean_and_std_of_training_nodes(data: Data) -> Tensor:
    known = data.x[data.train_mask]
    mean, std = known.mean(0, keepdim=True), known.std(0, keepdim=True)
    return (data.x - mean) / (std + 1e-6)


def whitened(data: Data) -> Tensor:
    x = data.x - data.x.mean(dim=0)
    eigenvalues, vectors = torch.linalg.eigh(x.t() @ x / (x.size(0) - 1))
    x = x @ (vectors * eigenvalues.rsqrt()) @ vectors.t()
    factor = torch.linalg.cholesky(torch.cov(data.x.t()))
    return x + torch.linalg.solve_triangular(factor, (data.x - data.x.mean(0)).t(), upper=False).t()


def whitened_targets(data: Data) -> Tensor:
    """A ridge regression in closed form, and a Cholesky factor."""
    x, y = data.x - data.x.mean(0), F.one_hot(data.y, num_classes=3).double()
    gram = x.t() @ x + torch.eye(6, dtype=torch.double)
    fitted = x @ torch.linalg.solve(gram, x.t() @ y)
    return torch.cat([fitted, torch.cholesky_solve(x.t(), torch.linalg.cholesky(gram)).t()], 1)


def correlations(data: Data) -> Tensor:
    z = (data.x - data.x.mean(0)) / data.x.std(0)
    corr = torch.einsum('ni,nj->ij', z, z) / (data.num_nodes - 1)
    worst = (corr - torch.eye(z.size(1))).abs().max(dim=0).values.argmax()
    return data.x[:, torch.arange(z.size(1)) != worst]


def class_means_as_features(data: Data) -> Tensor:
    """Of training nodes by a product, of all by masks."""
    one_hot = F.one_hot(data.y, 3).double() * data.train_mask.view(-1, 1)
    means = (one_hot.t() @ data.x) / one_hot.sum(0).view(-1, 1)
    every = torch.stack([data.x[data.y == c].mean(dim=0) for c in range(3)])
    distance = (data.x.unsqueeze(1) - every).pow(2).sum(-1)
    return torch.cat([torch.cdist(data.x, means), distance.sqrt()], dim=1)


def some_columns(data: Data) -> Tensor:
    x = torch.cat([data.x[:, :3], data.x[:, 4:].log1p().nan_to_num(), data.x[:, [0]] ** 2], dim=-1)
    order = x.var(dim=0).argsort(descending=True)
    return x[:, order[:5]]


def outliers_and_missing_values(data: Data) -> Tensor:
    """The mean comes in the place of outliers, and of every value above a bound."""
    z = (data.x - data.x.mean(0)) / data.x.std(0)
    x = torch.where(z.abs() > 1.5, data.x.mean(0), data.x)
    missing = data.x > 2.5
    mean = x.masked_fill(missing, 0.0).sum(0) / (~missing).sum(0)
    return x.masked_fill(missing, 0.0) + missing * mean


def labels_as_features(data: Data) -> Tensor:
    """Known labels go in where the mask is set (UniMP), by item assignment."""
    known = torch.zeros(data.num_nodes, 3, dtype=torch.double)
    known[data.train_mask] = F.one_hot(data.y[data.train_mask], 3).double()
    hot = F.one_hot(data.y, num_classes=3).double()
    hot[data.test_mask] = 0
    return torch.cat([data.x, known, hot], dim=-1)


def degrees(data: Data) -> Tensor:
    """As numbers, one-hot, by bincount, and PyG's profile of neighbours."""
    out_deg = torch.bincount(data.edge_index[0], minlength=data.num_nodes)
    in_deg = data.edge_index[1].bincount(minlength=data.num_nodes)
    both = torch.stack([out_deg, in_deg], dim=-1).double().log1p()
    deg = degree(data.edge_index[1], data.num_nodes, dtype=data.x.dtype)
    hot = F.one_hot(degree(data.edge_index[1], data.num_nodes, torch.long).clamp(max=6), 7)
    profile = T.LocalDegreeProfile()(Data(x=data.x, edge_index=data.edge_index)).x
    parts = [data.x, both - both.mean(0), (deg / deg.max()).view(-1, 1), hot.double(), profile]
    return torch.cat([each.double() for each in parts], dim=-1)


def numbers_of_other_kinds(data: Data) -> Tensor:
    """Halves, ints, bools and complex numbers made from features."""
    x, (row, col) = data.x, data.edge_index
    phase = torch.polar(x.abs() + 0.1, x)
    turn = torch.polar(torch.ones(x.size(1), dtype=x.dtype), torch.arange(x.size(1)).to(x.dtype))
    moved = torch.zeros_like(phase).index_add_(0, col, phase.conj()[row] * turn.conj())
    ints = (x * 10).long()
    whole = [(x > 1).double(), (ints % 7).double(), ints.bitwise_and(3).double()]
    return torch.cat([moved.real, moved.imag, moved.abs(), *whole, x.half().double()], 1) / 10


def features_propagated_where_missing(data: Data) -> Tensor:
    """Unknown entries are filled by neighbours, known ones are kept."""
    known = data.x > 1.2
    x = torch.where(known, data.x, torch.zeros_like(data.x))
    row, col = data.edge_index
    deg = degree(col, data.num_nodes, dtype=data.x.dtype).clamp(min=1)
    out = x.clone()
    for _ in range(4):
        out = torch.zeros_like(x).index_add_(0, col, out[row]) / deg[:, None]
        out[known] = x[known]
    return out


def features_changed_in_place(data: Data) -> Tensor:
    data.x[data.test_mask] = 0
    data.x[data.val_mask, 1:3] = -1.0
    data.x.add_(0.5).mul_(data.x > 0)
    data.x.masked_fill_(data.x > 3, 3.0)
    data.x[:, 0] = degree(data.edge_index[0], data.num_nodes, dtype=data.x.dtype)
    data.x[5] = 1.5
    data.x /= data.x.sum(1, keepdim=True).clamp_(min=1.0)
    data.y[data.y == 2] = 1
    return data.x


def column_masks_and_blocks(data: Data) -> Tensor:
    """Columns dropped by masks and lists, blocks written from other rows, numbers by masks."""
    x = data.x.clone()
    x[:, torch.tensor([True, False, False, True, False, False])] = 0
    x[:, [1, 2]] = data.x[:, [4, 5]]
    x[:, torch.tensor([4])] += 1
    x[x > 2] = x[x > 2] * 0.5
    x[x < 0] = -1.0
    x[data.y == 1, :2] = x[data.y == 1, 4:]
    x[:, 5] = torch.arange(data.num_nodes, dtype=torch.double).cos()
    return x


def transforms_composed(data: Data) -> Tensor:
    chain = [T.Constant(2.0), T.NormalizeFeatures(['x']), T.ToDevice('cpu')]
    return T.Compose(chain)(data).x


def with_x(data: Data, ddp: Ddp, make: Callable[[Data], Tensor]) -> Results:
    """Three steps with these features, which are results too."""
    data.x = x = make(data)
    return {'x': x} | trained(data, ddp)


PROGRAMS = programs(
    with_x,
    named(
        *(mean_and_std_of_training_nodes, whitened, whitened_targets, correlations),
        *(transforms_composed, class_means_as_features, some_columns, outliers_and_missing_values),
        *(labels_as_features, degrees, numbers_of_other_kinds, features_propagated_where_missing),
        *(features_changed_in_place, column_masks_and_blocks),
    ),
)


def ranks_and_ties(data: Data, ddp: Ddp) -> Results:
    """argmax and max where many are alike, sorted values, modes, thresholds by kthvalue."""
    x = data.x.round().clamp(0, 2).requires_grad_()
    top = x.amax(0).sum() + x.amin(0).sum() + x.max() + x.median()
    (grad,) = torch.autograd.grad(top, x)
    values = x.detach()
    return {
        'unique': values.unique(return_counts=True),
        'kth': values[:, 0].kthvalue(20).values,
        'mode': values.mode(dim=0).values,
        'columns': grad.sum(0)[:0],
        'bins': torch.histc(values, 4, 0, 2),
    }


def written_by_out(data: Data, ddp: Ddp) -> Results:
    """Functions with out=, and writing by masks to what needs a gradient."""
    total, picked = torch.empty_like(data.x), data.edge_weight.new_empty(data.num_edges)
    torch.add(data.x, 1, out=total)
    torch.index_select(data.x[:, 0], 0, data.edge_index[0], out=picked)
    both = torch.cat([data.x, data.x], 1)
    torch.cat([data.x * 2, data.x], 1, out=both)
    w = torch.ones_like(data.x).requires_grad_()
    z = data.x * w
    z[:, torch.tensor([0, 3])] = (z[:, :2] * 2).tanh()
    z[z > 1] = z[z > 1].log()
    z.sum().backward()
    return {'total': total, 'picked': picked, 'both': both, 'z': z, 'grad': w.grad}


def unique_rows_and_counts(data: Data, ddp: Ddp) -> Results:
    """Neighbourhoods that are alike, as in Weisfeiler and Lehman's test; sparsity."""
    positive = data.x > 1.5
    found = positive.long().unique(dim=0, return_inverse=True, return_counts=True)
    return {
        'unique': found,
        'none': int((~positive.any(dim=1)).sum()),
        'all': positive.all(dim=0),
        'density': positive.double().mean().item(),
        'nonzero': positive.nonzero().size(0),
        'count': torch.count_nonzero(positive, dim=0),
        'isnan': bool(torch.isnan(data.x).any()),
        'close': torch.allclose(data.x, data.x + 1e-12),
        'equal': torch.equal(data.y, data.y.clone()),
    }


def shares_of_neighbours(data: Data, ddp: Ddp) -> Results:
    """Means and largest of whole numbers and masks over neighbours."""
    y, is_known = data.y.view(-1, 1), data.train_mask.view(-1, 1)
    values = {'y': y, 'small': y.to(torch.uint8)}
    kinds = 'mean', 'std', 'max', 'min'
    found = {
        (name, kind): ddp(SimpleConv(kind))(value, data.edge_index)
        for name, value in values.items()
        for kind in kinds
    }
    any_known = ddp(SimpleConv('max'))(is_known, data.edge_index)
    return {f'{kind} of {name}': out for (name, kind), out in found.items()} | {'any': any_known}


def other_numbers_of_nodes(data: Data, ddp: Ddp) -> Results:
    """Nodes that are taken out, put in and doubled: their number is that of the rows of x."""
    whole, keep = data.clone(), data.train_mask
    data.edge_index, _ = subgraph(keep, data.edge_index, relabel_nodes=True)
    data.x, data.y = data.x[keep], data.y[keep]
    out = ddp(Net().double())(data.x, data.edge_index)
    loss = F.cross_entropy(out, data.y, reduction='sum') / data.num_nodes
    halves = T.HalfHop()(whole.clone()).num_nodes
    whole.x = torch.cat([whole.x, whole.x.mean(0, keepdim=True)])
    return {'own': data.num_nodes, 'loss': loss, 'one more': whole.num_nodes, 'halves': halves}
