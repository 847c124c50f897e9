"""Losses over edges: links, smoothness of what is predicted, contrast between both ends."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, by_order, descend, mlp, weights
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import GAE, VGAE, GCNConv, InnerProductDecoder
from torch_geometric.utils import degree, negative_sampling


def supervised(data: Data, out: Tensor) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def laplacian_penalty(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        src, dst = data.edge_index
        smooth = (z[src] - z[dst]).pow(2).sum() / data.edge_index.size(1)
        return supervised(data, z) + 0.1 * smooth

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def normalised_laplacian_penalty(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(mlp(data.num_features, 8, 3).double())
    src, dst = data.edge_index
    scale = degree(dst, data.num_nodes).clamp(min=1).sqrt().double().unsqueeze(-1)

    def loss_of() -> Tensor:
        out = model(data.x)
        p = out.softmax(-1) / scale
        return supervised(data, out) + 0.2 * ((p[src] - p[dst]) ** 2).sum(-1).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def weighted_smoothness(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        row, col = data.edge_index[0], data.edge_index[1]
        difference = torch.norm(out[row] - out[col], p=1, dim=1)
        return supervised(data, out) + (data.edge_weight * difference).mean()

    return {'losses': descend(loss_of, model, 0.02), 'weights': weights(model)}


def dirichlet_energy(data: Data, ddp: Ddp) -> Results:
    """A metric of oversmoothing, after training."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    descend(lambda: supervised(data, model(data.x, data.edge_index)), model)
    out = model(data.x, data.edge_index).detach()
    src, dst = data.edge_index
    deg = degree(dst, out.size(0), dtype=out.dtype) + 1
    h = out / deg.sqrt().unsqueeze(-1)
    energy = 0.5 * (h[src] - h[dst]).square().sum() / out.size(0)
    mad = (1 - F.cosine_similarity(out[src], out[dst])).mean()
    return {'energy': energy.item(), 'mad': mad.item()}


def dot_products(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 5).double())

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        logits = (z[data.edge_index[0]] * z[data.edge_index[1]]).sum(dim=-1)
        return F.binary_cross_entropy_with_logits(logits, (data.edge_type == 0).double())

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def links_against_random_pairs(data: Data, ddp: Ddp) -> Results:
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 5).double())

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        neg = torch.randint(0, data.num_nodes, (2, 200))
        pos_out = (z[data.edge_index[0]] * z[data.edge_index[1]]).sum(-1)
        neg_out = (z[neg[0]] * z[neg[1]]).sum(-1)
        out = torch.cat([pos_out, neg_out])
        target = torch.cat([torch.ones_like(pos_out), torch.zeros_like(neg_out)])
        return F.binary_cross_entropy_with_logits(out, target)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def links_against_negative_sampling(data: Data, ddp: Ddp) -> Results:
    seed_everything(0)
    model = ddp(Net(data.num_features, 8, 5).double())

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        neg = negative_sampling(data.edge_index, data.num_nodes, 150)
        pos = torch.sigmoid((z[data.edge_index[0]] * z[data.edge_index[1]]).sum(-1))
        neg_out = torch.sigmoid((z[neg[0]] * z[neg[1]]).sum(-1))
        return -(pos + 1e-15).log().mean() - (1 - neg_out + 1e-15).log().mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def corrupted_destinations(data: Data, ddp: Ddp) -> Results:
    """Margin ranking: an edge beats the same source with another edge's destination."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 5).double())

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        src, dst = data.edge_index
        pos = (z[src] * z[dst]).sum(-1)
        neg = z[src] @ z.mean(dim=0)
        return F.margin_ranking_loss(pos, neg, torch.ones_like(pos), margin=1.0)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def all_pairs(data: Data, ddp: Ddp) -> Results:
    """The adjacency against z z^T, dense, as small graphs allow."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 5).double())
    adj = torch.zeros(data.num_nodes, data.num_nodes).double()
    adj[data.edge_index[0], data.edge_index[1]] = 1

    def loss_of() -> Tensor:
        z = model(data.x, data.edge_index)
        return F.binary_cross_entropy_with_logits(z @ z.t(), adj)

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


@by_order
def graph_autoencoder(data: Data, ddp: Ddp) -> Results:
    seed_everything(0)
    gae = GAE(ddp(Net(data.num_features, 8, 5).double()))

    def loss_of() -> Tensor:
        return gae.recon_loss(gae.encode(data.x, data.edge_index), data.edge_index)

    return {'losses': descend(loss_of, gae), 'weights': weights(gae.encoder)}


@by_order
def variational_autoencoder(data: Data, ddp: Ddp) -> Results:
    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.mu, self.logstd = GCNConv(6, 8), GCNConv(8, 4), GCNConv(8, 4)

        def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
            h = self.conv(x, edge_index).relu()
            return self.mu(h, edge_index), self.logstd(h, edge_index)

    seed_everything(0)
    model = ddp(VGAE(Encoder()).double())
    inner = getattr(model, 'module', model)

    def loss_of() -> Tensor:
        z = inner.encode(data.x, data.edge_index)
        return inner.recon_loss(z, data.edge_index) + inner.kl_loss() / data.num_nodes

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def variational_by_hand(data: Data, ddp: Ddp) -> Results:
    """The KL divergence, and links of the means."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 10).double())
    decoder = InnerProductDecoder()

    def loss_of() -> Tensor:
        mu, logstd = model(data.x, data.edge_index).chunk(2, dim=-1)
        kl = -0.5 * torch.mean(torch.sum(1 + 2 * logstd - mu**2 - logstd.exp() ** 2, dim=1))
        links = -torch.log(decoder(mu, data.edge_index, sigmoid=True) + 1e-15).mean()
        return links + kl / data.num_nodes

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def contrast_of_neighbours(data: Data, ddp: Ddp) -> Results:
    """InfoNCE: an edge's ends against everything that a source might be joined with."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 5).double())

    def loss_of() -> Tensor:
        z = F.normalize(model(data.x, data.edge_index), dim=-1)
        every = torch.logsumexp(z @ z.t() / 0.5, dim=1)
        src, dst = data.edge_index
        return (every[src] - (z[src] * z[dst]).sum(-1) / 0.5).mean()

    return {'losses': descend(loss_of, model), 'weights': weights(model)}


def agreement_of_ends(data: Data, ddp: Ddp) -> Results:
    """KL divergence between what both ends predict; loops are left out."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 3).double())
    src, dst = data.edge_index
    real = src != dst

    def loss_of() -> Tensor:
        out = model(data.x, data.edge_index)
        log_p = out.log_softmax(-1)
        kl = F.kl_div(log_p[src][real], log_p[dst][real], log_target=True, reduction='batchmean')
        return supervised(data, out) + 0.1 * kl

    return {'loops': (~real).sum().item(), 'losses': descend(loss_of, model), 'w': weights(model)}


def modularity(data: Data, ddp: Ddp) -> Results:
    """DMoN without its dense adjacency: edges within clusters against what degrees expect."""
    torch.manual_seed(0)
    model = ddp(Net(data.num_features, 8, 4).double())
    src, dst = data.edge_index
    num_edges = data.edge_index.size(1)
    deg = degree(dst, data.num_nodes).double()

    def loss_of() -> Tensor:
        s = model(data.x, data.edge_index).softmax(dim=-1)
        within = (s[src] * s[dst]).sum() / num_edges
        expected = ((deg @ s) ** 2).sum() / num_edges**2
        collapse = s.sum(dim=0).norm() * 2 / data.num_nodes - 1
        return expected - within + collapse

    return {'losses': descend(loss_of, model), 'weights': weights(model)}
