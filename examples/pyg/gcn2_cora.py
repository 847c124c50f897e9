"""GCNII, 64 layers deep, on a citation graph, as PyG's examples/gcn2_cora.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py normalized_citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/gcn2_cora.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn import Linear
from torch_geometric.nn import GCN2Conv

# plain: import graphs
import pyg_sar  # sar

EPOCHS, DROPOUT, LAYERS = 1000, 0.6, 64

# plain: data = graphs.draw('normalized_citations')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
torch.manual_seed(0)


class GCN2(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, alpha, theta):
        super().__init__()
        self.lins = torch.nn.ModuleList(
            [Linear(in_channels, hidden_channels), Linear(hidden_channels, out_channels)]
        )
        self.convs = torch.nn.ModuleList(
            GCN2Conv(hidden_channels, alpha, theta, layer + 1, normalize=False)
            for layer in range(LAYERS)
        )

    def forward(self, x, edge_index, edge_weight):
        x = F.dropout(x, DROPOUT, self.training)
        x = x_0 = self.lins[0](x).relu()
        for conv in self.convs:
            x = F.dropout(x, DROPOUT, self.training)
            x = conv(x, x_0, edge_index, edge_weight).relu()
        x = F.dropout(x, DROPOUT, self.training)
        return self.lins[1](x).log_softmax(dim=-1)


model = GCN2(data.num_features, 64, data.num_classes, alpha=0.1, theta=0.5)
decayed = {'params': model.convs.parameters(), 'weight_decay': 0.01}
optimizer = torch.optim.Adam(
    [decayed, {'params': model.lins.parameters(), 'weight_decay': 5e-4}], lr=0.01
)
model = pyg_sar.DistributedDataParallel(model)  # sar


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index, data.edge_weight)
    loss = F.nll_loss(out[data.train_mask], data.y[data.train_mask])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    pred = model(data.x, data.edge_index, data.edge_weight).argmax(dim=-1)
    masks = data.train_mask, data.val_mask, data.test_mask
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:4d}  loss {loss:.4f}  accuracy', *(f'{acc:.4f}' for acc in accs))
