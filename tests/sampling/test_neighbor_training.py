"""The loop of the page on mini-batches: the same training on any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from ranks import run_as_threads
from small_graphs import assert_close, cut, small_graph
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import pyg_sar


def _train(root: str, device: str = 'cpu') -> tuple[list[float], Tensor, dict[str, Tensor]]:
    data = pyg_sar.load_shard(root).to(device)
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 2, 3).double().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = pyg_sar.NeighborLoader(
        data, num_neighbors=[3, 2], input_nodes=data.train_mask, batch_size=2, shuffle=True
    )
    losses = []
    for _ in range(2):
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            values = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            loss = pyg_sar.mean_of_batches(values)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        out = pyg_sar.gather(model(data.x, data.edge_index))
    return losses, out.cpu(), {k: v.cpu() for k, v in model.module.state_dict().items()}


@pytest.mark.parametrize('world_size', few([4, 2]))
def test_training_is_the_same_on_any_number_of_ranks(tmp_path: Path, world_size: int) -> None:
    root = str(cut(small_graph(), 4, tmp_path / 'parts'))
    _compare(run_as_threads(_train, world_size, root), run_as_threads(_train, 1, root)[0])


def _compare(results: list[Any], wanted: Any) -> None:
    losses, out, state = wanted
    for got, rows, weights in results:
        assert_close(rows, out, tolerance=1e-10)
        assert_close(
            *(torch.tensor(each, dtype=torch.float64) for each in (got, losses)), tolerance=1e-10
        )
        for name, weight in weights.items():
            assert_close(weight, state[name], tolerance=1e-10)
