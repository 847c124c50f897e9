"""A training run as a process of its own: prints losses and a checksum of all parameters.

Started anew for every run (``python deterministic.py ROOT FOLDER RANK WORLD_SIZE MODELS MODES
THREADS``), so that nothing is shared between two.
"""

from __future__ import annotations

import hashlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.nn import GATConv, GCNConv, GENConv, GraphConv, SAGEConv, TransformerConv

import pyg_sar

NUM_FEATURES, HIDDEN, NUM_CLASSES, EPOCHS = 16, 16, 4, 20


class Net(torch.nn.Module):
    """Two convs with batch norm and dropout between them."""

    def __init__(self, first: torch.nn.Module, second: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.norm = first, second, torch.nn.BatchNorm1d(HIDDEN)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.norm(self.first(x, edge_index)).relu()
        return self.second(F.dropout(x, 0.5, self.training), edge_index)


H, C = HIDDEN, NUM_CLASSES
MODELS = {
    'sums': lambda: Net(SAGEConv(NUM_FEATURES, H), GCNConv(H, C)),
    'attention': lambda: Net(
        GATConv(NUM_FEATURES, H // 4, heads=4, dropout=0.3), TransformerConv(H, C, dropout=0.3)
    ),
    'replay': lambda: Net(SAGEConv(NUM_FEATURES, H, aggr=['max', 'std']), GENConv(H, C)),
    'gather': lambda: Net(SAGEConv(NUM_FEATURES, H, aggr='median'), GraphConv(H, C)),
}


def train(root: str, name: str, mode: str) -> list[str]:
    """The losses' bits and a checksum of the state."""
    torch.manual_seed(0)
    data = pyg_sar.local(pyg_sar.load_shard(root))
    model = pyg_sar.DistributedDataParallel(MODELS[name](), mode=mode)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(EPOCHS):
        out = model(data.x, data.edge_index)
        loss = pyg_sar.over_all_nodes.global_mean(
            F.cross_entropy(out, data.y, reduction='none'), data.train_mask
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    state = hashlib.sha256()
    for value in model.state_dict().values():
        state.update(value.numpy().tobytes())
    return [*losses, state.hexdigest()]


if __name__ == '__main__':
    root, folder, rank, world_size, models, modes, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    dist.init_process_group(
        'gloo', init_method=f'file://{folder}/store', rank=int(rank), world_size=int(world_size)
    )
    for each in models.split(','):
        for mode in modes.split(','):
            print(each, mode, *train(root, each, mode), flush=True)
