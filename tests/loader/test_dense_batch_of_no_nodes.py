"""A batch without seeds goes through what makes dense batches, too."""

from __future__ import annotations

import torch
from torch_geometric.nn.models import SGFormer
from torch_geometric.utils import to_dense_batch

from pyg_sar.rows.patches import ask_for_rows


def test_a_model_that_reads_batch() -> None:
    ask_for_rows()  # as load_shard does
    x, batch = torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64)
    dense, mask = to_dense_batch(x, batch)
    assert dense.shape == (1, 0, 4)
    assert mask.shape == (1, 0)
    model = SGFormer(4, 8, 3)
    out = model(x, torch.zeros(2, 0, dtype=torch.int64), batch)
    assert out.shape == (0, 3)
    out.sum().backward()
    assert all((p.grad == 0).all() for p in model.parameters())  # all ranks average them
