"""Mini-batches on several ranks, as PyG's examples/multi_gpu/distributed_sampling.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/distributed_sampling.py

The plain program runs on ranks, too, each with the whole graph. There BATCH_SIZE counts the seeds
of one rank, here those of all.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

# plain: import graphs
# plain: from torch.nn.parallel import DistributedDataParallel
# plain: from torch_geometric.loader import NeighborLoader
import pyg_sar  # sar
from pyg_sar import DistributedDataParallel, NeighborLoader, init, load_shard  # sar

EPOCHS, BATCH_SIZE, NUM_NEIGHBORS, DROPOUT = 20, 16, [10, 5], 0.5

# plain: torch.distributed.init_process_group('gloo')
# plain: rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
# plain: data = graphs.draw('citations')
# plain: seeds = data.train_mask.nonzero().view(-1)[rank::world_size]
rank, data = init().rank, load_shard('parts/')  # sar
seeds = data.train_mask  # sar
loader = NeighborLoader(data, NUM_NEIGHBORS, seeds, batch_size=BATCH_SIZE, shuffle=True)
torch.manual_seed(0)


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = SAGEConv(in_channels, hidden_channels)
        self.conv2 = SAGEConv(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.dropout(self.conv1(x, edge_index).relu(), DROPOUT, self.training)
        return self.conv2(x, edge_index)


model = DistributedDataParallel(SAGE(data.num_features, 64, data.num_classes))
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)


def train():
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        out, y = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
        # plain: loss = F.cross_entropy(out, y)
        loss = pyg_sar.loader.mean_of_batches(F.cross_entropy(out, y, reduction='none'))  # sar
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index).argmax(dim=-1)
    masks = data.train_mask, data.val_mask, data.test_mask
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    if rank == 0:
        print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
