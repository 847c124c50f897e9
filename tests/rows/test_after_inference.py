"""What is kept of an index that was read in inference mode first serves training as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_as_threads
from small_graphs import assert_close, small_graph
from torch import Tensor

import pyg_sar

READS: dict[str, Callable[[Any, Any], Any]] = {
    'mask': lambda x, d: x[d.mask],
    'mask of a mask': lambda x, d: x[d.mask][d.mask[d.mask]],
    'ids': lambda x, d: x[d.chosen],
    'ids that are rows': lambda x, d: x[d.other],
    'one row': lambda x, d: x[3],
    'slice': lambda x, d: x[2:9:3],
    'index_select': lambda x, d: x.index_select(0, d.chosen),
    'sources of edges': lambda x, d: x[d.edge_index[0]],
    'edges of a mask': lambda x, d: x[d.edge_index[:, d.edge_mask][1]],
    'joined': lambda x, d: torch.cat([x, x[d.mask]])[d.chosen],
    'repeated': lambda x, d: x.repeat_interleave(2, 0)[d.mask.repeat_interleave(2)],
    'mask of numbers': lambda x, d: x[d.numbers],
    'masked_fill': lambda x, d: x.masked_fill(d.mask.unsqueeze(1), 0.5),
    'where': lambda x, d: torch.where(d.mask.unsqueeze(1), x, x.mean(0)),
    'index_add': lambda x, d: torch.zeros_like(x).index_add(0, d.edge_index[1], x[d.edge_index[0]]),
    'top': lambda x, d: x[:, 0].topk(5).values,
}


def _gradients(data: Any) -> dict[str, Tensor]:
    """Of every read, once in inference mode and once in training by the same index."""
    draw = torch.Generator().manual_seed(1)
    data.mask = data.train_mask.clone()
    data.numbers = data.x > 0
    data.chosen = torch.randint(data.num_nodes, (7,), generator=draw)
    gradients = {}
    for name, read in READS.items():
        with torch.inference_mode():
            read(data.x, data)
        x = data.x.detach().clone().requires_grad_()
        read(x, data).sin().sum().backward()
        gradients[name] = pyg_sar.gather(x.grad)
    return gradients


def _on_rank(root: str) -> dict[str, Tensor]:
    return _gradients(pyg_sar.load_shard(root))


@pytest.mark.parametrize('num_ranks', [1, 3])
def test_training_after_inference(tmp_path: Path, num_ranks: int) -> None:
    data = small_graph()
    data.x = data.x.double()
    data.other = (torch.arange(data.num_nodes) * 7) % data.num_nodes
    data.edge_mask = torch.arange(data.num_edges) % 3 > 0
    pyg_sar.partition_graph(data, 3, tmp_path / 'parts')
    want = _gradients(data)
    for got in run_as_threads(_on_rank, num_ranks, str(tmp_path / 'parts')):
        for name, gradient in want.items():
            assert_close(got[name], gradient)
