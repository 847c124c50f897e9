"""Signed GCN on who trusts whom, as PyG's examples/signed_gcn.py, layer by layer.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py trust graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/signed_gcn.py

``torch_geometric.nn.SignedGCN`` draws pairs inside of its losses; here they are the program's.
"""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch_geometric.nn import SignedConv

# plain: import graphs
# plain: from torch_geometric.utils import structured_negative_sampling
import pyg_sar  # sar

EPOCHS = 100

# plain: data, tests = graphs.draw('trust')
pyg_sar.init()  # sar
data, tests = pyg_sar.load_shard('parts/'), torch.load('beside.pt')  # sar
signed = [data.edge_index[:, data.edge_sign == sign] for sign in (1, -1)]
torch.manual_seed(0)


class SignedGCN(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        half = hidden_channels // 2
        self.conv1 = SignedConv(in_channels, half, first_aggr=True)
        self.conv2 = SignedConv(half, half, first_aggr=False)
        self.lin = torch.nn.Linear(2 * hidden_channels, 3)

    def forward(self, x, positive, negative):
        x = self.conv1(x, positive, negative).relu()
        return self.conv2(x, positive, negative).relu()

    def discriminate(self, z, src, dst):
        return self.lin(torch.cat([z[src], z[dst]], dim=-1)).log_softmax(dim=-1)


model = SignedGCN(data.num_features, 64)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train():
    model.train()
    optimizer.zero_grad()
    z, kinds = model(data.x, *signed), (*signed, data.edge_index)
    # plain: triples = [structured_negative_sampling(each.flip(0)) for each in kinds]
    triples = [pyg_sar.negative_sampling(each, paired=True)[[1, 0, 2]] for each in kinds]  # sar
    loss = 0
    for sign, (dst, src, other) in zip((1, -1), triples, strict=False):
        loss -= model.discriminate(z, src, dst)[:, int(sign < 0)].mean() / 3
        nearer = (z[dst] - z[src]).square().sum(dim=-1) - (z[dst] - z[other]).square().sum(dim=-1)
        loss += 5 * (sign * nearer).clamp(min=0).mean()
    loss -= model.discriminate(z, triples[2][2], triples[2][0])[:, 2].mean() / 3
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    out = model.discriminate(model(data.x, *signed), *tests['pairs'])
    return [float(roc_auc_score(tests['sign'] > 0, out[:, 0] - out[:, 1]))]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')
