"""R-GCN on relations between nodes without features, as PyG's examples/rgcn.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py entities graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/rgcn.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import RGCNConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS = 50

# plain: data = graphs.draw('entities')
# plain: x, train_idx, test_idx = None, data.train_idx, data.test_idx
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
x, train_idx, test_idx = data.n_id, data.train_idx, data.test_idx  # sar
torch.manual_seed(0)


class RGCN(torch.nn.Module):
    def __init__(self, num_nodes, hidden_channels, out_channels, num_relations):
        super().__init__()
        self.conv1 = RGCNConv(num_nodes, hidden_channels, num_relations, num_bases=30)
        self.conv2 = RGCNConv(hidden_channels, out_channels, num_relations, num_bases=30)

    def forward(self, x, edge_index, edge_type):
        x = self.conv1(x, edge_index, edge_type).relu()
        return self.conv2(x, edge_index, edge_type).log_softmax(dim=-1)


model = RGCN(data.num_nodes, 16, data.num_classes, data.num_relations)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, data.edge_index, data.edge_type)
    loss = F.nll_loss(out[train_idx], data.y[train_idx])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    pred = model(x, data.edge_index, data.edge_type).argmax(dim=-1)
    return [float((pred[idx] == data.y[idx]).float().mean()) for idx in (train_idx, test_idx)]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:2d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
