"""The examples of link prediction and of Deep Graph Infomax: the losses of plain PyG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from example_programs import EXAMPLES, example
from few import few
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GAE, GraphSAGE, LightGCN
from torch_geometric.utils import to_undirected

import pyg_sar

EPOCHS, NUM_NODES = 3, 60


def _graph() -> Data:
    graph = small_graph(NUM_NODES, 300)
    edge_index = to_undirected(graph.edge_index[:, graph.edge_index[0] != graph.edge_index[1]])
    masks = {'train_mask': graph.train_mask, 'test_mask': ~graph.train_mask}
    return Data(x=graph.x, edge_index=edge_index, y=graph.y, **masks)


def _split() -> tuple[Data, dict[str, Tensor]]:
    return example('link_prediction').split_links(_graph())


def _model(name: str) -> torch.nn.Module:
    torch.manual_seed(1)
    if name == 'infomax':
        return example(name).make_model(6, 5).double()
    model = GAE(GraphSAGE(6, 8, 2, 5)) if name == 'gae' else LightGCN(NUM_NODES, 5, 2)
    return model.double()


def _steps(model: Any, name: str, data: Data, lr: float) -> list[float]:
    """Plain PyG, with the same random pairs and orders."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=lr), []
    for epoch in range(EPOCHS):
        if name == 'infomax':
            loss = model.loss(*model(data.x, data.edge_index))
        elif name == 'gae':
            negative = pyg_sar.negative_sampling(data.edge_index, NUM_NODES, seed=epoch)
            z = model.encode(data.x, data.edge_index)
            loss = model.recon_loss(z, data.edge_index, negative)
        else:
            src, dst, other = pyg_sar.negative_sampling(
                data.edge_index, NUM_NODES, paired=True, seed=epoch
            )
            pos = model(data.edge_index, torch.stack([src, dst]))
            neg = model(data.edge_index, torch.stack([other, dst]))
            loss = model.recommendation_loss(pos, neg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _scores(z: Tensor, links: dict[str, Tensor]) -> list[float]:
    scores = {name: (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(dim=-1) for name, pairs in links.items()}
    return [(score[0] > score[1]).double().mean().item() for score in scores.values()]


def _losses(name: str, root: str, links: dict[str, Tensor]) -> tuple[list[float], list[float]]:
    program = example('infomax' if name == 'infomax' else 'link_prediction')
    data = pyg_sar.load_shard(root)
    model = pyg_sar.DistributedDataParallel(_model(name)).module
    torch.manual_seed(2)
    if name == 'infomax':
        losses = [loss.item() for loss in program.train(model, data, EPOCHS)]
        return losses, [program.accuracy(model, data)]
    steps = list(program.train(model, data, links, EPOCHS))
    return [loss.item() for loss, _ in steps], [share.item() for share in steps[-1][1].values()]


@pytest.mark.slow
@pytest.mark.parametrize('world_size', few([3, 1, 2]))
@pytest.mark.parametrize('name', ['gae', 'lightgcn', 'infomax'])
def test_losses_equal_plain_pyg(tmp_path: Path, name: str, world_size: int) -> None:
    graph, links = (_graph(), {}) if name == 'infomax' else _split()
    model: Any = _model(name)
    torch.manual_seed(2)
    expected = _steps(model, name, graph, 0.001 if name == 'infomax' else 0.01)
    with torch.no_grad():
        is_light = name == 'lightgcn'
        inputs = (graph.edge_index,) if is_light else (graph.x, graph.edge_index)
        z = (model.get_embedding if is_light else model.encoder)(*inputs)
    known, test = graph.train_mask, graph.test_mask
    scores = _scores(z, links)
    if name == 'infomax':
        scores = [model.test(z[known], graph.y[known], z[test], graph.y[test], max_iter=150)]
    root = cut(graph, world_size, tmp_path / 'parts')
    for losses, found in run_as_threads(_losses, world_size, name, str(root), links):
        assert losses == pytest.approx(expected, abs=1e-10, rel=0)
        assert found == pytest.approx(scores, abs=1e-6)


def _sampled(root: str, links: dict[str, Tensor]) -> list[float]:
    program = example('link_prediction_sampled')
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 2, 5).double())
    steps = list(program.train(model, data, links, EPOCHS, 32))
    return [loss.item() for loss, _ in steps] + [s.item() for s in steps[-1][1].values()]


@pytest.mark.slow
def test_links_in_batches_are_the_same_on_any_number_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    graph, links = _split()
    root = str(cut(graph, 6, tmp_path / 'parts'))
    want = _sampled(root, links)
    assert want[EPOCHS - 1] < want[0]
    for size in (2, 3):
        for found in run_as_threads(_sampled, size, root, links):
            assert found == pytest.approx(want, abs=1e-9)
