"""HeteroConv with lazy layers on authors and papers, as PyG's examples/hetero/hetero_conv_dblp.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py papers graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/hetero_conv.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import HeteroConv, Linear, SAGEConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS = 100

# plain: data = graphs.draw('papers')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
author = data['author']
torch.manual_seed(0)


class HeteroGNN(torch.nn.Module):
    def __init__(self, edge_types, hidden_channels, out_channels, num_layers):
        super().__init__()
        self.convs = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv((-1, -1), hidden_channels) for kind in edge_types})
            for _ in range(num_layers)
        )
        self.lin = Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
            x_dict = {key: F.leaky_relu(x) for key, x in x_dict.items()}
        return self.lin(x_dict['author'])


model = HeteroGNN(data.edge_types, 64, author.num_classes, num_layers=2)
model = pyg_sar.DistributedDataParallel(model)  # sar
with torch.no_grad():  # gives lazy layers their shapes
    model(data.x_dict, data.edge_index_dict)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=0.001)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x_dict, data.edge_index_dict)
    loss = F.cross_entropy(out[author.train_mask], author.y[author.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x_dict, data.edge_index_dict).argmax(dim=-1)
    masks = author.train_mask, author.val_mask, author.test_mask
    return [int((pred[mask] == author.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
