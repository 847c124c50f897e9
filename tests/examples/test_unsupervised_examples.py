"""The example of link prediction in batches: the same on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from example_programs import EXAMPLES, example
from ranks import run_as_threads
from small_graphs import cut, small_graph
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE
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


def _sampled(root: str, links: dict[str, Tensor]) -> list[float]:
    program = example('link_prediction_sampled')
    data = pyg_sar.load_shard(root)
    torch.manual_seed(1)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 2, 5).double())
    steps = list(program.train(model, data, links, EPOCHS, 32, (-1, -1)))
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
