"""Models of PyG's convs: what they hand on, share, repeat and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from shared import (
    Ddp,
    Program,
    Results,
    descend,
    inner,
    mlp,
    model_of,
    supervised,
    trained,
    weights,
)
from torch import Tensor
from torch.nn import BatchNorm1d, LayerNorm, Linear, Module, ModuleList, Parameter, ReLU, Sequential
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import degree


class Jumping(Module):
    """Three layers of a kind of jumping knowledge."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.convs = ModuleList(GCNConv(num, 8) for num in (6, 8, 8))
        self.jump = pyg.JumpingKnowledge(mode, channels=8, num_layers=2)
        self.lin = Linear(24 if mode == 'cat' else 8, 3)

    def forward(self, data: Data) -> Tensor:
        x, xs = data.x, []
        for conv in self.convs:
            x = conv(x, data.edge_index).tanh()
            xs.append(x)
        return self.lin(self.jump(xs))


class Deep(Module):
    """GCN2 of three layers, and convs of many terms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = Linear(6, 8), Linear(8, 3)
        self.convs = ModuleList(
            pyg.GCN2Conv(8, 0.1, 0.5, layer + 1, shared_weights=layer != 1) for layer in range(3)
        )
        self.cheb, self.arma = pyg.ChebConv(8, 8, 3), pyg.ARMAConv(8, 8, 2, 2, shared_weights=True)
        self.tag, self.fa = pyg.TAGConv(8, 8, 2), pyg.FAConv(8, eps=0.2)
        self.mix, self.lin = pyg.MixHopConv(8, 4, powers=[0, 1, 2]), Linear(12, 8)

    def forward(self, data: Data) -> Tensor:
        e, w = data.edge_index, data.edge_weight
        x = x_0 = self.first(data.x).relu()
        for conv in self.convs:
            x = conv(x, x_0, e, w).relu()
        x = self.arma(self.cheb(x, e, w, lambda_max=2.0).relu(), e, w)
        x = self.fa(self.tag(x, e, w).relu(), x_0, e)
        return self.last(self.lin(self.mix(x, e).tanh()))


class GINs(Module):
    """Norms in the MLPs; the last is in evaluation while the model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = ModuleList()
        for num in (6, 8):
            lins = Linear(num, 8), BatchNorm1d(8), ReLU(), Linear(8, 8), BatchNorm1d(8), ReLU()
            self.convs.append(pyg.GINConv(Sequential(*lins), train_eps=True))
        lins = Linear(8, 8), BatchNorm1d(8), ReLU(), Linear(8, 3)
        self.last = pyg.GINEConv(Sequential(*lins), edge_dim=4)

    def train(self, mode: bool = True) -> Module:
        super().train(mode)
        self.last.nn[1].eval()
        return self

    def forward(self, data: Data) -> Tensor:
        x = data.x
        for conv in self.convs:
            x = conv(x, data.edge_index)
        return self.last(x, data.edge_index, data.edge_attr)


class DeeperGEN(Module):
    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = Linear(4, 8), Linear(6, 8)
        soft = {'aggr': 'softmax', 't': 1.0, 'learn_t': True, 'num_layers': 2, 'norm': 'batch'}
        power = {'aggr': 'powermean', 'p': 1.0, 'learn_p': True, 'norm': 'layer'}
        self.convs = ModuleList([pyg.GENConv(8, 8, **soft), pyg.GENConv(8, 8, **power)])
        self.norms, self.lin = ModuleList([LayerNorm(8), LayerNorm(8)]), Linear(8, 3)

    def forward(self, data: Data) -> Tensor:
        x, edge_attr = self.node(data.x), self.edge(data.edge_attr)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = x + conv(norm(x).relu(), data.edge_index, edge_attr)
        return self.lin(x)


class Attentive(Module):
    """Attributes, loops with attributes, a residual, and what attention gives back."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = GATConv(6, 4, heads=2, edge_dim=4, fill_value='max')
        self.conv2 = GATConv(8, 8, edge_dim=4, fill_value='mean', residual=True)
        self.norm = pyg.GraphNorm(8)
        self.last = pyg.TransformerConv(8, 3, heads=2, concat=False, beta=True)

    def forward(self, data: Data) -> Tensor:
        x = F.elu(self.norm(self.conv1(data.x, data.edge_index, data.edge_attr)))
        x = self.conv2(x, data.edge_index, data.edge_attr)
        out, (_, alpha) = self.last(x, data.edge_index, return_attention_weights=True)
        return out * (1 + alpha.mean())


class MPNN(Module):
    """Weights by edge networks, one conv and one GRU used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.lin0, self.out = Linear(6, 4), Linear(4, 3)
        network = Sequential(Linear(4, 8), ReLU(), Linear(8, 16))
        self.conv, self.gru = pyg.NNConv(4, 4, network, aggr='mean'), torch.nn.GRU(4, 4)

    def forward(self, data: Data) -> Tensor:
        out = self.lin0(data.x).relu()
        h = out.unsqueeze(0)
        for _ in range(3):
            m = self.conv(out, data.edge_index, data.edge_attr).relu()
            out, h = self.gru(m.unsqueeze(0), h)
            out = out.squeeze(0)
        return self.out(out)


class Tied(Module):
    """Weights tied between layers, one norm after each of them, a scale of each."""

    def __init__(self) -> None:
        super().__init__()
        self.lin1, self.lin2, self.norm = Linear(6, 8), Linear(8, 3), BatchNorm1d(8)
        self.conv1, self.conv2, self.conv3 = GCNConv(8, 8), SAGEConv(8, 8), GCNConv(8, 8)
        self.conv3.lin.weight = self.conv1.lin.weight
        self.conv2.lin_r.weight = self.conv1.lin.weight
        self.scales = Parameter(torch.ones(4))

    def forward(self, data: Data) -> Tensor:
        x = self.lin1(data.x).relu()
        convs = self.conv1, self.conv2, self.conv3, self.conv1
        for conv, scale in zip(convs, self.scales, strict=True):
            h = F.dropout(conv(x, data.edge_index), 0.0, self.training)
            x = x + scale * self.norm(h).tanh()
        return self.lin2(F.dropout(x, 0.5, training=False))


class Ties(Module):
    """Many equal values under max, and their gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = SAGEConv(6, 8, aggr='max')
        self.conv2 = SAGEConv(8, 3, aggr=['max', 'mean', 'min'])

    def forward(self, data: Data) -> Tensor:
        x = self.conv1(data.x.round().clamp(0, 2), data.edge_index).relu()
        return self.conv2(x, data.edge_index)


class BothFlows(Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out_of = SAGEConv(6, 8), SAGEConv(6, 8, flow='target_to_source')
        self.into2, self.out_of2 = GATConv(8, 3), GATConv(8, 3, flow='target_to_source')
        self.alpha = Parameter(torch.tensor(0.3))

    def forward(self, data: Data) -> Tensor:
        a, e = self.alpha, data.edge_index
        x = (a * self.into(data.x, e) + (1 - a) * self.out_of(data.x, e)).relu()
        return a * self.into2(x, e) + (1 - a) * self.out_of2(x, e)


class Typed(Module):
    """Relations, propagation after an MLP whose last norm is frozen, and SGC that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.rgcn, self.sg = pyg.RGCNConv(6, 6, 3, num_bases=2), pyg.SGConv(6, 3, K=2, cached=True)
        self.mlp, self.prop = (
            pyg.MLP([6, 8, 3], norm='batch_norm', plain_last=False),
            pyg.APPNP(3, 0.2),
        )
        self.mlp.norms[-1].requires_grad_(False)

    def forward(self, data: Data) -> Tensor:
        h = self.rgcn(data.x, data.edge_index, data.edge_type).tanh()
        out = self.prop(self.mlp(h), data.edge_index, data.edge_weight)
        return out + self.sg(data.x, data.edge_index)


class Augmented(Module):
    """dropout_node, mask_feature, dropout_edge of undirected edges; one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = SAGEConv(6, 8), SAGEConv(8, 3)

    def forward(self, data: Data) -> Tensor:
        from torch_geometric.utils import dropout_edge, dropout_node, mask_feature

        x, e = data.x, data.edge_index
        if self.training:
            e, _, mask = dropout_node(e, p=0.2, num_nodes=data.num_nodes)
            x, _ = mask_feature(x, p=0.3, mode='all')
            x = x * mask.view(-1, 1)
            e, _ = dropout_edge(e, p=0.2)
        return self.conv2(self.conv1(x, e).relu(), e)


class Gumbel(Module):
    """Gumbel noise, masks by rand, normal noise scaled by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2, self.gate = GCNConv(6, 8), GCNConv(8, 3), Linear(8, 2)

    def forward(self, data: Data) -> Tensor:
        h = self.conv1(data.x, data.edge_index)
        if self.training:
            logits = self.gate(h)
            gumbel = -torch.empty_like(logits).exponential_().log()
            gate = ((logits + gumbel) / 0.7).softmax(dim=-1)
            h = h * gate[:, :1] + torch.randn_like(h) * 0.01 * h.std(dim=0)
            h = h * (torch.rand_like(h) < 0.9)
            h = h + torch.rand(h.size(0), 1, dtype=h.dtype) * 0.01
            h = h + data.x[torch.multinomial(torch.ones(data.num_nodes), 7)].mean()
        return self.conv2(h, data.edge_index)


MODELS: dict[str, Callable[[], Module]] = {
    'jumping_by_cat': lambda: Jumping('cat'),
    'jumping_by_max': lambda: Jumping('max'),
    'jumping_by_lstm': lambda: Jumping('lstm'),
    'convs_of_many_terms': Deep,
    'gin_with_norms_in_its_mlp': GINs,
    'deeper_gen_with_norms': DeeperGEN,
    'gat_with_attributes_and_self_loops': Attentive,
    'nn_conv_and_a_gru': MPNN,
    'weights_tied_between_layers': Tied,
    'ties_in_the_largest': Ties,
    'both_flows_in_one_layer': BothFlows,
    'relations_and_propagation': Typed,
    'nodes_and_features_dropped': Augmented,
    'drawn_rows_of_many_kinds': Gumbel,
}
PROGRAMS: dict[str, Program] = {
    name: lambda data, ddp, make=make: trained(data, ddp, make, inputs=(data,))
    for name, make in MODELS.items()
}


def principal_neighbourhood(data: Data, ddp: Ddp) -> Results:
    """The histogram of degrees is counted after loading, as in PyG's example."""
    deg = degree(data.edge_index[1], num_nodes=data.num_nodes, dtype=torch.long)
    histogram = torch.bincount(deg, minlength=int(deg.max()) + 1)

    def make() -> Module:
        scalers = ['identity', 'amplification', 'attenuation']
        return pyg.PNAConv(
            6, 3, ['mean', 'min', 'max', 'std'], scalers, histogram, 4, 3, divide_input=True
        )

    return {'deg': histogram} | trained(data, ddp, make, data.edge_attr)


# What a model gives, and keeps between calls


@dataclass
class Output:
    """What the model of many heads gives."""

    logits: list[Tensor]
    hidden: dict[str, Tensor]
    loss: Tensor | None = None


def outputs_in_a_dataclass(data: Data, ddp: Ddp) -> Results:
    """Rows in lists and dicts, and the loss inside of forward."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = ModuleList([GATConv(6, 4, heads=2), GATConv(8, 8)])
            self.heads = ModuleList([Linear(8, 3) for _ in range(3)])

        def forward(self, data: Data) -> Output:
            x = data.x
            for conv in self.body:
                x = F.elu(conv(x, data.edge_index))
            logits = [head(x) for head in self.heads]
            mean = torch.stack(logits).mean(0)
            spread = sum((each - mean).pow(2).mean() for each in logits)
            hits = (mean.argmax(-1) == data.y)[data.train_mask].sum()
            return Output(logits, {'x': x, 'hits': hits}, supervised(mean, data) - 0.01 * spread)

    model = model_of(ddp, Model)
    losses = descend(lambda: model(data).loss, model)
    out = model(data)
    return {'losses': losses, 'hidden': out.hidden, 'logits': out.logits, 'w': weights(model)}


def state_kept_between_calls(data: Data, ddp: Ddp) -> Results:
    """Rows of the last call are mixed in (GAS-like history), a buffer follows class means."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.lin, self.history, self.calls = GCNConv(6, 8), Linear(8, 3), None, 0
            self.register_buffer('means', torch.zeros(3, 8))

        def forward(self, x: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            h = self.conv(x, edge_index).tanh()
            self.calls += 1
            h = h if self.history is None else 0.8 * h + 0.2 * self.history
            self.history = h.detach()
            for c in range(3):
                self.means[c] = 0.5 * self.means[c] + 0.5 * h[y == c].detach().mean(dim=0)
            return self.lin(h), (h - self.means[y]).pow(2).sum(-1).mean()

    model = model_of(ddp, Model)

    def loss_of() -> Tensor:
        out, pull = model(data.x, data.edge_index, data.y)
        return supervised(out, data) + 0.1 * pull

    return {'losses': descend(loss_of, model), 'h': inner(model).history, 'w': weights(model)}


def hidden_state_between_steps(data: Data, ddp: Ddp) -> Results:
    """Recurrent: what a step gave goes into the next, detached; gradients through two of them."""

    class Model(Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.cell, self.lin = GCNConv(6, 8), torch.nn.GRUCell(8, 8), Linear(8, 3)

        def forward(self, x: Tensor, edge_index: Tensor, h: Tensor | None = None) -> Any:
            h = self.cell(self.conv(x, edge_index).tanh(), h)
            return self.lin(h), h

    model = model_of(ddp, Model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    h, losses = None, []
    for step in range(3):
        out, h = model(data.x * (1 + step), data.edge_index, h)
        again, h = model(data.x, data.edge_index, h)
        loss = supervised(out, data) + supervised(again, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        h = h.detach()
        losses.append(loss.item())
    return {'losses': losses, 'h': h, 'weights': weights(model)}


def multi_layer_perceptron(data: Data, ddp: Ddp) -> Results:
    """Rows alone, without a graph."""
    return trained(data, ddp, lambda: mlp(6, 8, 3), inputs=(data.x,))
