"""UniMP: labels of some nodes are inputs, as PyG's examples/unimp_arxiv.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/unimp.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import MaskLabel, TransformerConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS, LABEL_RATE = 200, 0.65

# plain: data = graphs.draw('citations')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
torch.manual_seed(0)


class UniMP(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, num_classes, heads):
        super().__init__()
        self.label_emb = MaskLabel(num_classes, in_channels)
        self.conv = TransformerConv(in_channels, hidden_channels // heads, heads)
        self.lin = torch.nn.Linear(hidden_channels, num_classes)

    def forward(self, x, y, edge_index, is_known):
        x = self.label_emb(x, y, is_known)
        return self.lin(self.conv(x, edge_index))


model = UniMP(data.num_features, 16, data.num_classes, heads=2)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    known = MaskLabel.ratio_mask(data.train_mask, LABEL_RATE)
    out, hidden = model(data.x, data.y, data.edge_index, known), data.train_mask & ~known
    loss = F.cross_entropy(out[hidden], data.y[hidden])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    out = model(data.x, data.y, data.edge_index, data.train_mask)
    pred, masks = out.argmax(dim=-1), (data.val_mask, data.test_mask)
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
