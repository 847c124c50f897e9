"""Deep Graph Infomax on a citation graph, as PyG's examples/infomax_transductive.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/infomax.py
"""

from __future__ import annotations

import torch
from torch_geometric.nn import DeepGraphInfomax, GCNConv

# plain: import graphs
import pyg_sar  # sar

EPOCHS = 300

# plain: data = graphs.draw('citations')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
torch.manual_seed(0)


class Encoder(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.conv = GCNConv(in_channels, hidden_channels, cached=True)
        self.prelu = torch.nn.PReLU(hidden_channels)

    def forward(self, x, edge_index):
        return self.prelu(self.conv(x, edge_index))


def corruption(x, edge_index):
    return x[torch.randperm(x.size(0))], edge_index


def summary(z, *args):
    return z.mean(dim=0).sigmoid()


model = DeepGraphInfomax(64, Encoder(data.num_features, 64), summary, corruption)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)


def train():
    model.train()
    optimizer.zero_grad()
    loss = model.loss(*model(data.x, data.edge_index))
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    z, _, _ = model(data.x, data.edge_index)
    known, other = data.train_mask, data.test_mask
    sets = z[known], data.y[known], z[other], data.y[other]
    return [model.test(*sets, max_iter=150)]


for epoch in range(1, EPOCHS + 1):
    loss = train()
    print(f'{epoch:3d}  loss {loss:.4f}')
accs = test()
print(f'accuracy {accs[0]:.4f}')
