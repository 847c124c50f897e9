"""With all neighbours, a batch's seeds have the outputs and gradients of the whole graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import WRITES, assignment, hetero_graph
from on_ranks import parts_of
from ranks import run_as_threads
from small_graphs import assert_close, small_graph
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


def _compare_gradients(results: list[Found], model: nn.Module) -> None:
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
    for name, wanted in _gradients(model).items():
        grads = [each[2][name] for each in results if each[2][name] is not None]
        if wanted is None:
            assert not any(g.any() for g in grads)
        else:
            assert_near(sum(grads), wanted)


def _loss(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out, y, reduction='sum')


def _gradients(model: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def _of_type(values: Any, key: str | None) -> Any:
    return values if key is None else values[key]


def _seeds(root: str, model: nn.Module, key: str | None, *args: Any, **options: Any) -> Found:
    data = pyg_sar.load_shard(root)
    mask = _of_type(data, key).train_mask
    seeds, ids, outs = mask if key is None else (key, mask), [], []
    for batch in pyg_sar.NeighborLoader(data, [-1, -1], seeds, **options):
        store = _of_type(batch, key)
        out = _of_type(model(batch, *args), key)[: store.batch_size]
        _loss(out, store.y[: store.batch_size]).backward()
        ids.append(store.n_id[: store.batch_size])
        outs.append(out.detach())
    return torch.cat(ids), torch.cat(outs), _gradients(model)


def _compare(
    root: Path, graph: Any, model: nn.Module, key: str | None, *args: Any, **how: Any
) -> None:
    """With a step on the whole graph."""
    results = run_as_threads(_seeds, 2, str(root), model, key, *args, **how)
    out, store = _of_type(model(graph), key), _of_type(graph, key)
    _loss(out[store.train_mask], store.y[store.train_mask]).backward()
    ids, outs = (torch.cat([result[i] for result in results]) for i in (0, 1))
    assert ids.sort().values.tolist() == store.train_mask.nonzero().view(-1).tolist()
    assert_near(outs, out.detach()[ids])
    _compare_gradients(results, model)


@pytest.mark.parametrize('trim', [False, True])
@pytest.mark.parametrize('has_edges', [False, True])
def test_seeds_as_on_the_whole_graph(has_edges: bool, trim: bool) -> None:
    model = Net(has_edges).double()
    _compare(parts_of(4), small_graph(), model, None, trim, batch_size=3, shuffle=True)


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
    model = HeteroNet(graph.edge_types).double()
    with torch.no_grad():
        model(graph)
    return model


def test_seeds_as_on_the_whole_heterogeneous_graph(tmp_path: Path, featured: HeteroData) -> None:
    _compare(tmp_path / 'parts', featured, _initialized(featured), 'paper', batch_size=4)


def _scores(z: dict[str, Tensor], src: Tensor, dst: Tensor, label: Tensor) -> Tensor:
    values = (z['author'][src] * z['paper'][dst]).sum(-1) * 3
    return nn.functional.binary_cross_entropy_with_logits(values, label.to(values), reduction='sum')


def _links(root: str, model: HeteroNet) -> Found:
    data, seen, losses = pyg_sar.load_shard(root), [], []
    how = {'batch_size': 5, 'neg_sampling': 'binary', 'shuffle': True}
    for batch in pyg_sar.LinkNeighborLoader(data, [-1, -1], WRITES, **how):
        (src, dst), label = batch[WRITES].edge_label_index, batch[WRITES].edge_label
        loss = _scores(model(batch), src, dst, label)
        loss.backward()
        losses.append(loss.detach())
        ids = batch['author'].n_id[src], batch['paper'].n_id[dst]
        seen.append(torch.stack([*ids, label.long()]))
    return torch.cat(seen, dim=1), torch.stack(losses).sum(), _gradients(model)


def test_links_as_on_the_whole_heterogeneous_graph(tmp_path: Path, featured: HeteroData) -> None:
    model = _initialized(featured)
    results = run_as_threads(_links, 2, str(tmp_path / 'parts'), model)
    links = torch.cat([links for links, _, _ in results], dim=1)
    loss = _scores(model(featured), *links)
    loss.backward()
    assert_near(torch.stack([each for _, each, _ in results]).sum(), loss.detach())
    _compare_gradients(results, model)
