"""With all neighbours, a batch's seeds have the outputs and gradients of the whole graph."""

from __future__ import annotations

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
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import pyg_sar
from pyg_sar import partition_graph

assert_near = partial(assert_close, tolerance=1e-10)
Found = tuple[Tensor, Tensor, dict[str, Tensor | None]]
"""What a rank has seen, ids; what the model gave for it; and every gradient."""


class Net(nn.Module):
    """Two layers; trims where it is told the hops."""

    def __init__(self, has_edges: bool) -> None:
        super().__init__()
        make: Any = partial(GATConv, edge_dim=4) if has_edges else SAGEConv
        self.has_edges, self.convs = has_edges, nn.ModuleList([make(6, 5), make(5, 5)])

    def forward(self, data: Data, trim: bool = False) -> Tensor:
        x, edge_index, edge_attr = data.x, data.edge_index, data.edge_attr
        for i, conv in enumerate(self.convs):
            if trim:
                hops = data.num_sampled_nodes, data.num_sampled_edges
                x, edge_index, edge_attr = trim_to_layer(i, *hops, x, edge_index, edge_attr)
            x = conv(x, edge_index, *([edge_attr] if self.has_edges else [])).tanh()
        return x


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, reduction='sum')


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _compare_gradients(results: list[Found], model: nn.Module) -> None:
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    for name, wanted in _gradients(model).items():
        grads = [each[2][name] for each in results if each[2][name] is not None]
        if wanted is None:
            assert not any(g.any() for g in grads)
        else:
            assert_near(sum(grads), wanted)


def _compare(results: list[Found], model: nn.Module, out: Tensor, store: Any) -> None:
    """With a step on the whole graph."""
    mask = store.train_mask
    _loss(out[mask], store.y[mask]).backward()
    ids, outs = (torch.cat([result[i] for result in results]) for i in (0, 1))
    assert ids.sort().values.tolist() == mask.nonzero().view(-1).tolist()
    assert_near(outs, out.detach()[ids])
    _compare_gradients(results, model)


def _sampled(root: str, has_edges: bool, trim: bool) -> Found:
    data = pyg_sar.load_shard(root)
    model = Net(has_edges).double()
    loader = pyg_sar.NeighborLoader(data, [-1, -1], data.train_mask, batch_size=3, shuffle=True)
    ids, outs = [], []
    for batch in loader:
        out = model(batch, trim)[: batch.batch_size]
        _loss(out, batch.y[: batch.batch_size]).backward()
        ids.append(batch.n_id[: batch.batch_size])
        outs.append(out.detach())
    return torch.cat(ids), torch.cat(outs), _gradients(model)


@pytest.mark.parametrize('trim', [False, True])
@pytest.mark.parametrize('has_edges', [False, True])
def test_seeds_as_on_the_whole_graph(tmp_path: Path, has_edges: bool, trim: bool) -> None:
    graph = small_graph()
    root = str(cut(graph, 4, tmp_path / 'parts'))
    torch.manual_seed(0)
    model = Net(has_edges).double()
    results = run_as_threads(_sampled, 2, root, has_edges, trim)
    _compare(results, model, model(graph), graph)


class HeteroNet(nn.Module):
    def __init__(self, edge_types: list[tuple[str, str, str]]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            HeteroConv({key: SAGEConv((-1, -1), 5) for key in edge_types}) for _ in range(2)
        )

    def forward(self, data: HeteroData) -> dict[str, Tensor]:
        x = data.x_dict
        for conv in self.convs:
            x = {key: value.tanh() for key, value in conv(x, data.edge_index_dict).items()}
        return x


@pytest.fixture
def featured(tmp_path: Path) -> HeteroData:
    """With features of all types; its parts are there."""
    graph = hetero_graph()
    graph['term'].x = torch.eye(graph['term'].num_nodes, dtype=torch.float64)
    graph['lonely'].x = graph['lonely'].x.double()
    partition_graph(graph, 4, tmp_path / 'parts', method=assignment(4))
    return graph


def _initialized(graph: HeteroData) -> HeteroNet:
    torch.manual_seed(0)
    model = HeteroNet(graph.edge_types).double()
    with torch.no_grad():
        model(graph)
    return model


def _seeds(root: str, model: HeteroNet) -> Found:
    data = pyg_sar.load_shard(root)
    seeds, ids, outs = ('paper', data['paper'].train_mask), [], []
    for batch in pyg_sar.NeighborLoader(data, [-1, -1], seeds, batch_size=4):
        size = batch['paper'].batch_size
        out = model(batch)['paper'][:size]
        _loss(out, batch['paper'].y[:size]).backward()
        ids.append(batch['paper'].n_id[:size])
        outs.append(out.detach())
    return torch.cat(ids), torch.cat(outs), _gradients(model)


def test_seeds_as_on_the_whole_heterogeneous_graph(tmp_path: Path, featured: HeteroData) -> None:
    model = _initialized(featured)
    results = run_as_threads(_seeds, 2, str(tmp_path / 'parts'), model)
    _compare(results, model, model(featured)['paper'], featured['paper'])


def _scores(z: dict[str, Tensor], src: Tensor, dst: Tensor, label: Tensor) -> Tensor:
    values = (z['author'][src] * z['paper'][dst]).sum(-1) * 3
    return nn.functional.binary_cross_entropy_with_logits(values, label.to(values), reduction='sum')


def _links(root: str, model: HeteroNet) -> Found:
    loader = pyg_sar.LinkNeighborLoader(
        pyg_sar.load_shard(root),
        [-1, -1],
        WRITES,
        batch_size=5,
        neg_sampling='binary',
        shuffle=True,
    )
    seen, losses = [], []
    for batch in loader:
        store = batch[WRITES]
        (src, dst), label = store.edge_label_index, store.edge_label
        loss = _scores(model(batch), src, dst, label)
        loss.backward()
        losses.append(loss.detach())
        seen.append(
            torch.stack([batch['author'].n_id[src], batch['paper'].n_id[dst], label.long()])
        )
    return torch.cat(seen, dim=1), torch.stack(losses).sum(), _gradients(model)


def test_links_as_on_the_whole_heterogeneous_graph(tmp_path: Path, featured: HeteroData) -> None:
    model = _initialized(featured)
    results = run_as_threads(_links, 2, str(tmp_path / 'parts'), model)
    links = torch.cat([links for links, _, _ in results], dim=1)
    loss = _scores(model(featured), *links)
    loss.backward()
    assert_near(torch.stack([each for _, each, _ in results]).sum(), loss.detach())
    _compare_gradients(results, model)
