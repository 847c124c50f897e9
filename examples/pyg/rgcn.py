"""R-GCN on relations between nodes without features, as PyG's examples/rgcn.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py entities graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --nproc-per-node 3 examples/pyg/rgcn.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import RGCNConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS = 50

# plain: data = graphs.draw('entities')
# plain: x, num_nodes = None, data.num_nodes
process = pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
x, num_nodes = data.n_id, data.num_nodes_total  # sar
torch.manual_seed(0)


class RGCN(torch.nn.Module):
    def __init__(self, num_nodes, hidden_channels, out_channels, num_relations):
        super().__init__()
        self.conv1 = RGCNConv(num_nodes, hidden_channels, num_relations, num_bases=30)
        self.conv2 = RGCNConv(hidden_channels, out_channels, num_relations, num_bases=30)

    def forward(self, x, edge_index, edge_type):
        x = self.conv1(x, edge_index, edge_type).relu()
        return self.conv2(x, edge_index, edge_type).log_softmax(dim=-1)


model = RGCN(num_nodes, 16, data.num_classes, data.num_relations)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    out = model(x, data.edge_index, data.edge_type)
    # plain: loss = F.nll_loss(out[data.train_idx], data.y[data.train_idx])
    losses = F.nll_loss(out, data.y, reduction='none')  # sar
    loss = pyg_sar.global_mean(losses, data.train_mask)  # sar
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    right = (model(x, data.edge_index, data.edge_type).argmax(dim=-1) == data.y).float()
    # plain: return [float(right[nodes].mean()) for nodes in (data.train_idx, data.test_idx)]
    return [float(pyg_sar.global_mean(right, m)) for m in (data.train_mask, data.test_mask)]  # sar


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    # plain: print(f'{epoch:2d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
    if process.rank == 0:  # sar
        print(f'{epoch:2d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))  # sar
