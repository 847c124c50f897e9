"""Features made ready before training: standardised, whitened, clipped, extended."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch_geometric import transforms as T
from torch_geometric.data import Data


def after_training(data: Data, ddp: Ddp, x: Tensor) -> Results:
    """Three steps with these features."""
    torch.manual_seed(0)
    model = ddp(Net(x.size(1), 8, 3).double())

    def loss_of() -> Tensor:
        out = model(x, data.edge_index)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'x': x, 'losses': descend(loss_of, model), 'weights': weights(model)}


def mean_and_std(data: Data, ddp: Ddp) -> Results:
    data.x = (data.x - data.x.mean(dim=0)) / data.x.std(dim=0)
    return after_training(data, ddp, data.x)


def mean_and_std_of_training_nodes(data: Data, ddp: Ddp) -> Results:
    known = data.x[data.train_mask]
    mean, std = known.mean(0, keepdim=True), known.std(0, keepdim=True)
    return after_training(data, ddp, (data.x - mean) / (std + 1e-6))


def mean_and_var_unbiased_not(data: Data, ddp: Ddp) -> Results:
    var, mean = torch.var_mean(data.x, dim=0, unbiased=False)
    return after_training(data, ddp, (data.x - mean) * torch.rsqrt(var + 1e-5))


def between_min_and_max(data: Data, ddp: Ddp) -> Results:
    low, high = data.x.min(dim=0).values, data.x.max(dim=0)[0]
    return after_training(data, ddp, (data.x - low) / (high - low))


def between_amin_and_amax(data: Data, ddp: Ddp) -> Results:
    x = data.x / torch.maximum(data.x.amax(0).abs(), data.x.amin(0).abs())
    return after_training(data, ddp, x)


def clipped_by_quantiles(data: Data, ddp: Ddp) -> Results:
    low, high = data.x.quantile(0.05, dim=0), torch.quantile(data.x, 0.95, dim=0)
    return after_training(data, ddp, torch.clamp(data.x, low, high))


def median_and_deviation(data: Data, ddp: Ddp) -> Results:
    median = data.x.median(dim=0).values
    deviation = (data.x - median).abs().median(dim=0).values
    return after_training(data, ddp, (data.x - median) / deviation)


def rows_of_norm_one(data: Data, ddp: Ddp) -> Results:
    return after_training(data, ddp, F.normalize(data.x, p=2, dim=-1))


def columns_of_norm_one(data: Data, ddp: Ddp) -> Results:
    return after_training(data, ddp, 5 * F.normalize(data.x, dim=0))


def frobenius_norm(data: Data, ddp: Ddp) -> Results:
    norm = torch.linalg.norm(data.x)
    return {'norm': norm.item()} | after_training(data, ddp, 10 * data.x / norm)


def rows_that_sum_to_one(data: Data, ddp: Ddp) -> Results:
    x = data.x.abs()
    return after_training(data, ddp, x / x.sum(dim=-1, keepdim=True).clamp(min=1))


def whitened(data: Data, ddp: Ddp) -> Results:
    x = data.x - data.x.mean(dim=0)
    cov = x.t() @ x / (x.size(0) - 1)
    eigenvalues, vectors = torch.linalg.eigh(cov)
    return after_training(data, ddp, x @ (vectors * eigenvalues.rsqrt()) @ vectors.t())


def whitened_by_torch_cov(data: Data, ddp: Ddp) -> Results:
    factor = torch.linalg.cholesky(torch.cov(data.x.t()))
    x = torch.linalg.solve_triangular(factor, (data.x - data.x.mean(0)).t(), upper=False).t()
    return after_training(data, ddp, x)


def principal_components(data: Data, ddp: Ddp) -> Results:
    x = data.x - data.x.mean(0)
    vectors = torch.linalg.svd(x, full_matrices=False).Vh[:3]
    return after_training(data, ddp, (x @ vectors.t()).abs())


def correlations(data: Data, ddp: Ddp) -> Results:
    """Drops the feature that is correlated most with another."""
    z = (data.x - data.x.mean(0)) / data.x.std(0)
    corr = torch.einsum('ni,nj->ij', z, z) / (data.num_nodes - 1)
    worst = (corr - torch.eye(z.size(1))).abs().max(dim=0).values.argmax()
    kept = torch.arange(z.size(1)) != worst
    return {'corr': corr} | after_training(data, ddp, data.x[:, kept])


def transform_normalize_features(data: Data, ddp: Ddp) -> Results:
    data.x = data.x.abs()
    data = T.NormalizeFeatures()(data)
    return after_training(data, ddp, data.x)


def class_means_as_features(data: Data, ddp: Ddp) -> Results:
    """How far a node is from the mean of every class of training nodes."""
    one_hot = F.one_hot(data.y, 3).double() * data.train_mask.view(-1, 1)
    means = (one_hot.t() @ data.x) / one_hot.sum(0).view(-1, 1)
    return {'means': means} | after_training(data, ddp, torch.cdist(data.x, means))


def means_of_every_class(data: Data, ddp: Ddp) -> Results:
    means = torch.stack([data.x[data.y == c].mean(dim=0) for c in range(3)])
    distance = (data.x.unsqueeze(1) - means).pow(2).sum(-1)
    return {'means': means} | after_training(data, ddp, torch.cat([data.x, distance.sqrt()], 1))


def some_columns(data: Data, ddp: Ddp) -> Results:
    x = torch.cat([data.x[:, :3], data.x[:, 4:].log1p().nan_to_num(), data.x[:, [0]] ** 2], dim=-1)
    return after_training(data, ddp, x)


@by_order
def random_features(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(1)
    extra = torch.randn(data.num_nodes, 4, dtype=torch.float64)
    return after_training(data, ddp, torch.cat([data.x, extra], dim=1))


@by_order
def shuffled_features(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(1)
    return after_training(data, ddp, data.x[torch.randperm(data.num_nodes)])


def outliers_become_the_mean(data: Data, ddp: Ddp) -> Results:
    z = (data.x - data.x.mean(0)) / data.x.std(0)
    outliers = z.abs() > 1.5
    x = torch.where(outliers, data.x.mean(0), data.x)
    return {'count': int(outliers.sum())} | after_training(data, ddp, x)


def missing_values(data: Data, ddp: Ddp) -> Results:
    """Every value above a bound is missing; the mean of the others comes in its place."""
    missing = data.x > 2.5
    x = data.x.masked_fill(missing, 0.0)
    mean = x.sum(0) / (~missing).sum(0)
    return {'mean': mean} | after_training(data, ddp, x + missing * mean)


def bins_of_a_feature(data: Data, ddp: Ddp) -> Results:
    bounds = torch.linspace(data.x[:, 0].min().item(), data.x[:, 0].max().item(), 6)[1:-1]
    bins = torch.bucketize(data.x[:, 0], bounds.double())
    return {'bins': bins} | after_training(data, ddp, F.one_hot(bins, 5).double())


def feature_gates(data: Data, ddp: Ddp) -> Results:
    """A model of rows alone, whose gate looks at the variance of every feature."""
    torch.manual_seed(0)
    model = ddp(mlp(data.num_features, 8, 3).double())
    gate = torch.sigmoid(data.x.var(dim=0))

    def loss_of() -> Tensor:
        out = model(data.x * gate)
        return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])

    return {'gate': gate, 'losses': descend(loss_of, model), 'weights': weights(model)}
