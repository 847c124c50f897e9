"""HGT on authors and papers, as PyG's examples/hetero/hgt_dblp.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py papers graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/hgt.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import HGTConv, Linear

# plain: import graphs
import pyg_sar  # sar

EPOCHS = 100

# plain: data = graphs.draw('papers')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
author = data['author']
torch.manual_seed(0)


class HGT(torch.nn.Module):
    def __init__(self, metadata, hidden_channels, out_channels, heads, num_layers):
        super().__init__()
        self.lins = torch.nn.ModuleDict({name: Linear(-1, hidden_channels) for name in metadata[0]})
        self.convs = torch.nn.ModuleList(
            HGTConv(hidden_channels, hidden_channels, metadata, heads) for _ in range(num_layers)
        )
        self.lin = Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {name: self.lins[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict['author'])


model = HGT(data.metadata(), 64, author.num_classes, heads=2, num_layers=1)
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
