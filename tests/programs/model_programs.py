"""Models of PyG's convs: what they hand on, share, repeat and give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from shared import Ddp, Net, Results, named, parts, programs
from three_steps import descend, fitted, inner, model_of, supervised, trained, weights
from torch import Tensor
from torch.func import functional_call
from torch.nn import BatchNorm1d, Buffer, Linear, Module, ModuleList, Parameter, ReLU, Sequential
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import GPSE, GATConv, GCNConv, SAGEConv, WLConv


@parts(
    conv1=partial(GATConv, 6, 4, heads=2, edge_dim=4, fill_value='max'),
    conv2=partial(GATConv, 8, 8, edge_dim=4, fill_value='mean', residual=True),
    norm=(pyg.GraphNorm, 8),
    last=partial(pyg.TransformerConv, 8, 3, heads=2, concat=False, beta=True),
)
def gat_with_attributes_and_self_loops(m: Any, data: Data) -> Tensor:
    """Attributes, loops with attributes, a residual, and what attention gives back."""
    x = F.elu(m.norm(m.conv1(data.x, data.edge_index, data.edge_attr)))
    x = m.conv2(x, data.edge_index, data.edge_attr)
    out, (_, alpha) = m.last(x, data.edge_index, return_attention_weights=True)
    return out * (1 + alpha.mean())


@parts(
    lin0=(Linear, 6, 4),
    out=(Linear, 4, 3),
    conv=lambda: pyg.NNConv(4, 4, Sequential(Linear(4, 8), ReLU(), Linear(8, 16)), aggr='mean'),
    gru=(torch.nn.GRU, 4, 4),
)
def nn_conv_and_a_gru(m: Any, data: Data) -> Tensor:
    """Weights by edge networks, one conv and one GRU used three times."""
    out = m.lin0(data.x).relu()
    h = out.unsqueeze(0)
    for _ in range(3):
        found = m.conv(out, data.edge_index, data.edge_attr).relu()
        out, h = m.gru(found.unsqueeze(0), h)
        out = out.squeeze(0)
    return m.out(out)


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


@parts(conv1=(SAGEConv, 6, 8), conv2=(SAGEConv, 8, 3))
def nodes_and_features_dropped(m: Any, data: Data) -> Tensor:
    """dropout_node, mask_feature, dropout_edge of undirected edges; one after another."""
    from torch_geometric.utils import dropout_edge, dropout_node, mask_feature

    x, e = data.x, data.edge_index
    if m.training:
        e, _, mask = dropout_node(e, p=0.2, num_nodes=data.num_nodes)
        x, _ = mask_feature(x, p=0.3, mode='all')
        x = x * mask.view(-1, 1)
        e, _ = dropout_edge(e, p=0.2)
    return m.conv2(m.conv1(x, e).relu(), e)


@parts(conv1=(GCNConv, 6, 8), conv2=(GCNConv, 8, 3), gate=(Linear, 8, 2))
def drawn_rows_of_many_kinds(m: Any, data: Data) -> Tensor:
    """Gumbel noise, masks by rand, normal noise scaled by rows."""
    h = m.conv1(data.x, data.edge_index)
    if m.training:
        logits = m.gate(h)
        gumbel = -torch.empty_like(logits).exponential_().log()
        gate = ((logits + gumbel) / 0.7).softmax(dim=-1)
        h = h * gate[:, :1] + torch.randn_like(h) * 0.01 * h.std(dim=0)
        h = h * (torch.rand_like(h) < 0.9)
        h = h + torch.rand(h.size(0), 1, dtype=h.dtype) * 0.01
        h = h + data.x[torch.multinomial(torch.ones(data.num_nodes), 7)].mean()
    return m.conv2(h, data.edge_index)


def on_data(data: Data, ddp: Ddp, make: Callable[[], Module]) -> Results:
    return trained(data, ddp, make, inputs=(data,))


PROGRAMS = programs(
    on_data,
    {'weights_tied_between_layers': Tied}
    | named(
        *(gat_with_attributes_and_self_loops, nn_conv_and_a_gru, nodes_and_features_dropped),
        drawn_rows_of_many_kinds,
    ),
)


# What a model gives, and keeps between calls


@dataclass
class Output:
    """What the model of many heads gives."""

    logits: list[Tensor]
    hidden: dict[str, Tensor]
    loss: Tensor | None = None


def outputs_in_a_dataclass(data: Data, ddp: Ddp) -> Results:
    """Rows in lists and dicts, and the loss inside of forward."""

    @parts(
        body=lambda: ModuleList([GATConv(6, 4, heads=2), GATConv(8, 8)]),
        heads=lambda: ModuleList([Linear(8, 3) for _ in range(3)]),
    )
    def net(m: Any, data: Data) -> Output:
        x = data.x
        for conv in m.body:
            x = F.elu(conv(x, data.edge_index))
        logits = [head(x) for head in m.heads]
        mean = torch.stack(logits).mean(0)
        spread = sum((each - mean).pow(2).mean() for each in logits)
        hits = (mean.argmax(-1) == data.y)[data.train_mask].sum()
        return Output(logits, {'x': x, 'hits': hits}, supervised(mean, data) - 0.01 * spread)

    model = model_of(ddp, net)
    losses = descend(lambda: model(data).loss, model)
    out = model(data)
    return {'losses': losses, 'hidden': out.hidden, 'logits': out.logits, 'w': weights(model)}


def state_kept_between_calls(data: Data, ddp: Ddp) -> Results:
    """Rows of the last call are mixed in (GAS-like history), a buffer follows class means."""

    @parts(
        conv=(GCNConv, 6, 8),
        lin=(Linear, 8, 3),
        history=lambda: None,
        calls=lambda: 0,
        means=lambda: Buffer(torch.zeros(3, 8)),
    )
    def net(m: Any, x: Tensor, edge_index: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        h = m.conv(x, edge_index).tanh()
        m.calls += 1
        h = h if m.history is None else 0.8 * h + 0.2 * m.history
        m.history = h.detach()
        for c in range(3):
            m.means[c] = 0.5 * m.means[c] + 0.5 * h[y == c].detach().mean(dim=0)
        return m.lin(h), (h - m.means[y]).pow(2).sum(-1).mean()

    model = model_of(ddp, net)

    def loss_of() -> Tensor:
        out, pull = model(data.x, data.edge_index, data.y)
        return supervised(out, data) + 0.1 * pull

    return {'losses': descend(loss_of, model), 'h': inner(model).history, 'w': weights(model)}


def hidden_state_between_steps(data: Data, ddp: Ddp) -> Results:
    """Recurrent: what a step gave goes into the next, detached; gradients through two of them."""

    @parts(conv=(GCNConv, 6, 8), cell=(torch.nn.GRUCell, 8, 8), lin=(Linear, 8, 3))
    def net(m: Any, x: Tensor, edge_index: Tensor, h: Tensor | None = None) -> Any:
        h = m.cell(m.conv(x, edge_index).tanh(), h)
        return m.lin(h), h

    model = model_of(ddp, net)
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


def gpse_of(data: Data, ddp: Ddp, virtual_node: bool) -> Results:
    torch.manual_seed(0)
    layers = {'layers_pre_mp': 1, 'layers_mp': 2, 'layers_post_mp': 2}
    widths = {'dim_out': 4, 'dim_inner': 8, 'multi_head_dim_inner': 4}
    targets = {'num_node_targets': 3, 'num_graph_targets': 2}
    options = layers | widths | targets
    model = ddp(GPSE(6, virtual_node=virtual_node, dropout=0.0, **options).double())

    def loss() -> torch.Tensor:
        batch = data.clone()
        batch.batch, batch.y_graph = torch.zeros_like(data.y), torch.ones(1, 2).double()
        batch.y = F.one_hot(data.y, 3).double()
        pred, true = model(batch)
        return (pred - true).abs().mean()

    return fitted(loss, model, 0.05)


PROGRAMS |= programs(gpse_of, {'gpse': False, 'gpse_with_a_virtual_node': True})


def weisfeiler_lehman(data: Data, ddp: Ddp) -> Results:
    """Colours of two rounds of WLConv, which is no MessagePassing, and their histogram."""
    conv = WLConv()
    first = conv(data.y, data.edge_index)
    second = conv(first, data.edge_index)
    return {'first': first, 'second': second, 'histogram': conv.histogram(second)}


def a_generator_in_forward(data: Data, ddp: Ddp) -> Results:
    generator = torch.Generator().manual_seed(7)

    class Noisy(Net):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = x + torch.rand(x.size(0), 1, generator=generator, dtype=x.dtype)
            keep = torch.bernoulli(torch.full(x.shape, 0.5, dtype=x.dtype), generator=generator)
            x = (x * keep / 0.5)[torch.randperm(x.size(0), generator=generator)]
            return super().forward(x, edge_index)

    return trained(data, ddp, Noisy) | {'state': generator.get_state()}


def complex_conv(data: Data, ddp: Ddp) -> Results:
    model = ddp(GCNConv(6, 4).to(torch.cdouble))
    x = torch.complex(data.x, data.x.flip(1)).requires_grad_()
    free = torch.randn(4, dtype=torch.cdouble, requires_grad=True)
    out = model(x, data.edge_index) * free
    (out.abs().square().mean() + (out.mean(0) * out[3]).sum().abs()).backward()
    grads = {name: p.grad for name, p in inner(model).named_parameters()}
    found = grads | {'f': free.grad.resolve_conj()}
    return {name: torch.view_as_real(grad) for name, grad in found.items()}


def compiled(data: Data, ddp: Ddp) -> Results:
    """Around the parallel model, and inside of it."""
    first = torch.compile(model_of(ddp), backend='eager')
    losses = descend(lambda: supervised(first(data.x, data.edge_index), data), first)
    torch.manual_seed(0)
    second = ddp(torch.compile(Net().double(), backend='eager'))
    losses += descend(lambda: supervised(second(data.x, data.edge_index), data), second)
    return {'losses': losses, 'weights': [list(weights(m).values()) for m in (first, second)]}


def fast_weights_of_the_first_order(data: Data, ddp: Ddp) -> Results:
    model: Any = model_of(ddp)
    fast = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(2):
        out = functional_call(model, fast, (data.x, data.edge_index))
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        grads = torch.autograd.grad(loss, list(fast.values()), allow_unused=True)
        fast = {
            name: (w if g is None else w - 0.1 * g).detach().requires_grad_()
            for (name, w), g in zip(fast.items(), grads, strict=True)
        }
    return {'fast': list(fast.values()), 'weights': weights(model)}
