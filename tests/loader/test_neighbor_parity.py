"""With all neighbours, a batch's seeds have the outputs and gradients of the whole graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import WRITES, assignment, hetero_graph
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    GATConv,
    GINConv,
    GraphConv,
    HeteroConv,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.utils import trim_to_layer

import pyg_sar
from pyg_sar import partition_graph

TOLERANCE = 1e-10
EDGES = {'GATConv', 'TransformerConv'}


def _conv(name: str, channels: int) -> nn.Module:
    if name == 'GINConv':
        return GINConv(nn.Sequential(nn.Linear(channels, 5), nn.ReLU(), nn.Linear(5, 5)))
    kinds: dict[str, Callable[..., nn.Module]] = {
        'SAGEConv': SAGEConv,
        'GraphConv': GraphConv,
        'GATConv': GATConv,
        'TransformerConv': TransformerConv,
    }
    more = {'edge_dim': 4} if name in EDGES else {}
    return kinds[name](channels, 5, **more)


class Net(nn.Module):
    """Two layers; trims where it is told the hops."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.convs = name, nn.ModuleList([_conv(name, 6), _conv(name, 5)])

    def forward(self, data: Data, trim: bool = False) -> Tensor:
        x, edge_index, edge_attr = data.x, data.edge_index, data.edge_attr
        for i, conv in enumerate(self.convs):
            if trim:
                hops = data.num_sampled_nodes, data.num_sampled_edges
                x, edge_index, edge_attr = trim_to_layer(i, *hops, x, edge_index, edge_attr)
            x = conv(x, edge_index, edge_attr) if self.name in EDGES else conv(x, edge_index)
            x = x.tanh()
        return x


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, reduction='sum')


def _sampled(root: str, name: str, trim: bool) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    data = pyg_sar.load_shard(root)
    model = Net(name).double()
    loader = pyg_sar.NeighborLoader(data, [-1, -1], data.train_mask, batch_size=3, shuffle=True)
    ids, outs = [], []
    for batch in loader:
        out = model(batch, trim)[: batch.batch_size]
        _loss(out, batch.y[: batch.batch_size]).backward()
        ids.append(batch.n_id[: batch.batch_size])
        outs.append(out.detach())
    return torch.cat(ids), torch.cat(outs), {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize('trim', [False, True])
@pytest.mark.parametrize('name', ['SAGEConv', 'GINConv', 'GraphConv', 'GATConv', 'TransformerConv'])
def test_seeds_as_on_the_whole_graph(tmp_path: Path, name: str, trim: bool) -> None:
    graph = small_graph()
    root = str(cut(graph, 4, tmp_path / 'parts'))
    torch.manual_seed(0)
    model = Net(name).double()
    out = model(graph)
    _loss(out[graph.train_mask], graph.y[graph.train_mask]).backward()
    _compare(run_as_threads(_sampled, 2, root, name, trim), model, out, graph.train_mask)


def _compare(results: list[Any], model: nn.Module, out: Tensor, mask: Tensor) -> None:
    ids, outs = (torch.cat([result[i] for result in results]) for i in (0, 1))
    assert ids.sort().values.tolist() == mask.nonzero().view(-1).tolist()
    assert_close(outs, out.detach()[ids], tolerance=TOLERANCE)
    compare_gradients(results, model)


def compare_gradients(results: list[Any], model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        grads = [r[2][name] for r in results if r[2][name] is not None]
        if parameter.grad is None:
            assert not any(g.any() for g in grads)
        else:
            assert_close(sum(grads), parameter.grad, tolerance=TOLERANCE)


class HeteroNet(nn.Module):
    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({key: SAGEConv((-1, -1), 5) for key in edge_types}) for _ in range(2)
        )

    def forward(self, data: HeteroData) -> Tensor:
        x = data.x_dict
        for conv in self.convs:
            x = {key: value.tanh() for key, value in conv(x, data.edge_index_dict).items()}
        return x['paper'][:, :3]


def featured() -> HeteroData:
    """With features of all types."""
    graph = hetero_graph()
    graph['term'].x = torch.eye(graph['term'].num_nodes, dtype=torch.float64)
    graph['lonely'].x = graph['lonely'].x.double()
    return graph


def _hetero_model(graph: HeteroData) -> nn.Module:
    torch.manual_seed(0)
    model = HeteroNet(graph.edge_types).double()
    with torch.no_grad():
        model(graph)
    return model


def _sampled_hetero(root: str, state: dict[str, Tensor]) -> tuple[Tensor, Tensor, Any]:
    data = pyg_sar.load_shard(root)
    model = _hetero_model(featured())
    model.load_state_dict(state)
    seeds = 'paper', data['paper'].train_mask
    ids, outs = [], []
    for batch in pyg_sar.NeighborLoader(data, [-1, -1], seeds, batch_size=4):
        size = batch['paper'].batch_size
        out = model(batch)[:size]
        _loss(out, batch['paper'].y[:size]).backward()
        ids.append(batch['paper'].n_id[:size])
        outs.append(out.detach())
    return torch.cat(ids), torch.cat(outs), {n: p.grad for n, p in model.named_parameters()}


def test_seeds_as_on_the_whole_heterogeneous_graph(tmp_path: Path) -> None:
    graph = featured()
    partition_graph(graph, 4, tmp_path / 'parts', method=assignment(4))
    model = _hetero_model(graph)
    out, mask = model(graph), graph['paper'].train_mask
    _loss(out[mask], graph['paper'].y[mask]).backward()
    root = str(tmp_path / 'parts')
    results = run_as_threads(_sampled_hetero, 2, root, model.state_dict())
    _compare(results, model, out, mask)


Step = Callable[[Any, nn.Module], tuple[Tensor, Tensor, Tensor]]


def _scores(src: Tensor, dst: Tensor, label: Tensor) -> Tensor:
    values = (src * dst).sum(-1) * 3
    return nn.functional.binary_cross_entropy_with_logits(values, label.to(values), reduction='sum')


def _of_ranks(
    root: str, make: Callable[[], nn.Module], step: Step, options: dict[str, Any]
) -> tuple[Any, ...]:
    """All links that were seen, as ids; what they gave; every gradient."""
    data = pyg_sar.load_shard(root)
    model = make()
    loader = pyg_sar.LinkNeighborLoader(data, [-1, -1], shuffle=True, **options)
    seen, losses = [], []
    for batch in loader:
        loss, links, _ = step(batch, model)
        loss.backward()
        losses.append(loss.detach())
        seen.append(links)
    return torch.cat(seen, dim=1), sum(losses), {n: p.grad for n, p in model.named_parameters()}


def _compare_losses(
    results: list[Any], make: Callable[[], nn.Module], whole: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    model = make()
    loss = whole(model, torch.cat([links for links, _, _ in results], dim=1))
    loss.backward()
    assert_close(sum(loss for _, loss, _ in results), loss.detach(), tolerance=TOLERANCE)
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    compare_gradients(results, model)


class BothEnds(HeteroNet):
    def forward(self, data: HeteroData) -> dict[str, Tensor]:
        x = data.x_dict
        for conv in self.convs:
            x = {key: value.tanh() for key, value in conv(x, data.edge_index_dict).items()}
        return x


def _hetero_net(state: dict[str, Tensor] | None = None) -> nn.Module:
    graph = featured()
    torch.manual_seed(0)
    model = BothEnds(graph.edge_types).double()
    with torch.no_grad():
        model(graph)
    if state is not None:
        model.load_state_dict(state)
    return model


def _of_types(batch: HeteroData, model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    z, store = model(batch), batch[WRITES]
    src, dst = store.edge_label_index
    ends = [batch['author'].n_id[src], batch['paper'].n_id[dst], store.edge_label.long()]
    values = _scores(z['author'][src], z['paper'][dst], store.edge_label)
    return values, torch.stack(ends), src


def test_links_as_on_the_whole_heterogeneous_graph(tmp_path: Path) -> None:
    graph = featured()
    partition_graph(graph, 4, tmp_path / 'parts', method=assignment(4))
    state = _hetero_net().state_dict()
    options = {'edge_label_index': WRITES, 'batch_size': 5, 'neg_sampling': 'binary'}
    results = run_as_threads(
        _of_ranks, 2, str(tmp_path / 'parts'), partial(_hetero_net, state), _of_types, options
    )

    def whole(model: nn.Module, links: Tensor) -> Tensor:
        z = model(graph)
        return _scores(z['author'][links[0]], z['paper'][links[1]], links[2])

    _compare_losses(results, partial(_hetero_net, state), whole)
