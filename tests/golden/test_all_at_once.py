"""Everything on at once, and resumed on another number of ranks, against one plain control."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from few import few
from hetero_graphs import hetero_graph
from ranks import run_ranks
from torch import Tensor
from torch_geometric.nn import GATConv, HeteroConv, SAGEConv

import pyg_sar

EPOCHS, STEPS = 4, 2
TYPES = ('paper', 'author')  # those with features
ALL = {'mode': 'one_shot'}


class Net(torch.nn.Module):
    """Two layers over all relations, attention in the second, with dropout between them."""

    def __init__(self, data: Any, width: int = 8) -> None:
        super().__init__()
        widths = {key: data[key].x.size(1) for key in TYPES}
        relations = [e for e in data.edge_types if e[0] in TYPES and e[2] in TYPES]
        self.first = HeteroConv(
            {e: SAGEConv((widths[e[0]], widths[e[2]]), width) for e in relations}
        )
        self.second = HeteroConv(
            {e: GATConv((width, width), width, add_self_loops=False) for e in relations}
        )
        self.head = torch.nn.Linear(width, 3)

    def forward(self, x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        h = self.first(x, edges)
        h = {key: F.dropout(value.relu(), 0.3, self.training) for key, value in h.items()}
        return self.head(self.second(h, edges)['paper'])


def _trained(root: str, kept: str, last: int, options: dict[str, Any]) -> list[float]:
    """Losses of the epochs up to `last`, from the checkpoint on if there is one."""
    data = pyg_sar.load_shard(root)
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(Net(data).double(), dropout_seed=5, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    found = pyg_sar.load_checkpoint(kept, model, optimizer) if kept else None
    losses = []
    for epoch in range(1 if found is None else found.epoch + 1, last + 1):
        optimizer.zero_grad()
        for _ in range(STEPS):
            out = model({key: data[key].x for key in TYPES}, data.edge_index_dict)
            loss = F.cross_entropy(out, data['paper'].y)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
        if kept:
            pyg_sar.save_checkpoint(kept, model, optimizer, epoch=epoch)
    return losses


@pytest.mark.parametrize(
    ('options', 'tolerance'), [(ALL, 1e-9), ({**ALL, 'exchange_dtype': torch.bfloat16}, 2e-2)]
)
@pytest.mark.parametrize('sizes', few([[3, 1], [1, 3]], every=2))
def test_all_at_once(
    tmp_path: Path, sizes: list[int], options: dict[str, Any], tolerance: float
) -> None:
    root, kept = str(tmp_path / 'parts'), str(tmp_path / 'run')
    pyg_sar.partition_graph(hetero_graph(), 3, root)
    (control,) = run_ranks(_trained, 1, root, '', EPOCHS, {})
    first = run_ranks(_trained, sizes[0], root, kept, EPOCHS // 2, options)[0]
    second = run_ranks(_trained, sizes[1], root, kept, EPOCHS, options)[0]
    assert len(first) == len(second) == EPOCHS // 2
    assert first + second == pytest.approx(control, rel=tolerance)
    assert len(set(control)) == EPOCHS
