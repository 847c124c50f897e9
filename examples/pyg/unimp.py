"""UniMP: labels of some nodes are inputs, as PyG's examples/unimp_arxiv.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --nproc-per-node 3 examples/pyg/unimp.py

The labels that an epoch hides are drawn by node, so they do not depend on the number of ranks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import MaskLabel, TransformerConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS, LABEL_RATE = 200, 0.65

# plain: data = graphs.draw('citations')
process = pyg_sar.init()  # sar
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


def train(epoch):
    model.train()
    optimizer.zero_grad()
    # plain: known = MaskLabel.ratio_mask(data.train_mask, LABEL_RATE)
    known = data.train_mask & (pyg_sar.draws.uniform(epoch, data.n_id) < LABEL_RATE)  # sar
    out, hidden = model(data.x, data.y, data.edge_index, known), data.train_mask & ~known
    # plain: loss = F.cross_entropy(out[hidden], data.y[hidden])
    loss = pyg_sar.global_mean(F.cross_entropy(out, data.y, reduction='none'), hidden)  # sar
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    out = model(data.x, data.y, data.edge_index, data.train_mask)
    right, masks = (out.argmax(dim=-1) == data.y).float(), (data.val_mask, data.test_mask)
    # plain: return [float(right[mask].mean()) for mask in masks]
    return [float(pyg_sar.global_mean(right, mask)) for mask in masks]  # sar


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(epoch), test()
    # plain: print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
    if process.rank == 0:  # sar
        print(f'{epoch:3d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))  # sar
