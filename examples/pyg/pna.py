"""PNA on molecules, full batch, as PyG's examples/pna.py does in batches.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py molecules graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/pna.py
"""

from __future__ import annotations

import torch
from torch.nn import Embedding, Linear, ReLU, Sequential
from torch_geometric.nn import PNAConv, global_add_pool
from torch_geometric.utils import degree

# plain: import graphs
import pyg_sar  # sar

EPOCHS, LAYERS = 100, 4

# plain: data, y = graphs.draw('molecules')
pyg_sar.init()  # sar
data, y = pyg_sar.load_shard('parts/'), torch.load('beside.pt')  # sar
torch.manual_seed(0)

deg = torch.bincount(degree(data.edge_index[1], data.num_nodes, torch.long), minlength=5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.node_emb, self.edge_emb = Embedding(5, 20), Embedding(3, 10)
        options = {
            'aggregators': ['mean', 'min', 'max', 'std'],
            'scalers': ['identity', 'amplification', 'attenuation'],
        }
        self.convs = torch.nn.ModuleList(
            PNAConv(20, 20, deg=deg, edge_dim=10, towers=5, **options) for _ in range(LAYERS)
        )
        self.mlp = Sequential(Linear(20, 10), ReLU(), Linear(10, 1))

    def forward(self, x, edge_index, edge_attr, batch):
        x, edge_attr = self.node_emb(x), self.edge_emb(edge_attr)
        for conv in self.convs:
            x = conv(x, edge_index, edge_attr).relu()
        x = global_add_pool(x, batch)
        return self.mlp(x).squeeze(-1)


model = Net()
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=5)


def train():
    model.train()
    optimizer.zero_grad()
    errors = (model(data.x, data.edge_index, data.edge_attr, data.batch) - y).abs()
    loss = errors[:30].mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    errors = (model(data.x, data.edge_index, data.edge_attr, data.batch) - y).abs()
    return [float(errors[30:].mean())]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    scheduler.step(accs[0])
    print(f'{epoch:3d}  loss {loss:.4f}  error of the others {accs[0]:.4f}')
