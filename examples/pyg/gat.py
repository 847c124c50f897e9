"""GAT on a citation graph, as PyG's examples/gat.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/gat.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS, DROPOUT = 200, 0.6

# plain: data = graphs.draw('citations')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
torch.manual_seed(0)


class GAT(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, heads):
        super().__init__()
        self.conv1 = GATConv(in_channels, hidden_channels, heads, dropout=DROPOUT)
        self.conv2 = GATConv(hidden_channels * heads, out_channels, dropout=DROPOUT)

    def forward(self, x, edge_index):
        x = F.dropout(x, DROPOUT, self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, DROPOUT, self.training)
        return self.conv2(x, edge_index).log_softmax(dim=-1)


model = GAT(data.num_features, 8, data.num_classes, heads=8)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
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
    print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
