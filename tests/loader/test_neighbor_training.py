"""The loop of the page on mini-batches: that of plain PyG, step by step, on any number of ranks."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from alike import assert_same, leaves
from few import few
from hand_batches import batch_of
from on_ranks import parts_of
from ranks import run_as_threads
from small_graphs import small_graph
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import pyg_sar

EPOCHS, BATCH_SIZE = 2, 5
Steps = list[tuple[float, list[Tensor]]]


def _steps(loader: Any, model: Any, mean: Any) -> Steps:
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(EPOCHS):
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            values = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            loss = mean(values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append((loss.item(), [p.grad.cpu().clone() for p in model.parameters()]))
    return steps


def _model() -> torch.nn.Module:
    torch.manual_seed(3)
    return GraphSAGE(6, 8, 2, 3).double()


def _train(root: str, device: str = 'cpu', **options: Any) -> Steps:
    data = pyg_sar.load_shard(root).to(device)
    model = pyg_sar.DistributedDataParallel(_model().to(device))
    how = {'batch_size': BATCH_SIZE, **options}
    loader = pyg_sar.NeighborLoader(data, [-1, -1], data.train_mask, **how)
    return _steps(loader, model, pyg_sar.loader.mean_of_batches)


def _train_plain(**options: Any) -> Steps:
    """With torch's loader on one process, without ranks; batches are as PyG gives them."""
    graph, how = small_graph(), {'batch_size': BATCH_SIZE, **options}
    loader: Any = torch.utils.data.DataLoader(
        graph.train_mask.nonzero().view(-1),
        collate_fn=lambda seeds: batch_of(graph, torch.stack(seeds)),
        **how,
    )
    return _steps(loader, _model(), torch.mean)


def compare(results: list[Steps], wanted: Steps) -> None:
    """Losses and gradients of every step."""
    for steps in results:
        assert_same(leaves(steps), leaves(wanted), tolerance=1e-12)


OPTIONS = [{'shuffle': True}, {'shuffle': False}, {'shuffle': True, 'drop_last': True}]


@pytest.mark.parametrize('options', OPTIONS)
@pytest.mark.parametrize('world_size', [1, 2, 3])
def test_losses_and_gradients_are_those_of_plain_pyg(world_size: int, options: Any) -> None:
    root = str(parts_of(6))
    compare(run_as_threads(_train, world_size, root, **options), _train_plain(**options))


def _places(root: str, of: str, options: dict[str, Any]) -> list[list[int]]:
    data = pyg_sar.load_shard(root)
    make = pyg_sar.NeighborLoader if of == 'nodes' else pyg_sar.LinkNeighborLoader
    torch.manual_seed(7 + pyg_sar.comm.ranks.rank())  # that of rank 0 counts
    loader = make(data, [], **options)
    return [batch.input_id.tolist() for _ in range(EPOCHS) for batch in loader]


@pytest.mark.parametrize(('of', 'count'), [('nodes', 40), ('links', 228)])
@pytest.mark.parametrize('world_size', few([3, 1]))
@pytest.mark.parametrize('options', OPTIONS)
def test_batches_are_those_of_torch(world_size: int, of: str, count: int, options: Any) -> None:
    options = {**options, 'batch_size': 7}
    results = run_as_threads(_places, world_size, str(parts_of(6)), of, options)
    torch.manual_seed(7)
    plain: Any = torch.utils.data.DataLoader(range(count), collate_fn=list, **options)
    want = [sorted(batch) for _ in range(EPOCHS) for batch in plain]
    found = [sorted(chain.from_iterable(same)) for same in zip(*results, strict=True)]
    assert found == want
