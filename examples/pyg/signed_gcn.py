"""Signed GCN on who trusts whom, as PyG's examples/signed_gcn.py, layer by layer.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py trust graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --nproc-per-node 3 examples/pyg/signed_gcn.py

``torch_geometric.nn.SignedGCN`` reads rows of nodes by pair inside of its losses; here they are the
program's. A pair that is no edge replaces the source of an edge, as its destination is here.
"""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch_geometric.nn import SignedConv

# plain: import graphs
# plain: from torch_geometric.utils import negative_sampling, structured_negative_sampling
import pyg_sar  # sar

EPOCHS = 100

# plain: data, tests = graphs.draw('trust')
# plain: mean = torch.mean
process = pyg_sar.init()  # sar
data, tests = pyg_sar.load_shard('parts/'), torch.load('beside.pt')  # sar
mean = pyg_sar.global_mean  # sar
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

    def discriminate(self, ends):
        return self.lin(torch.cat([ends[0], ends[1]], dim=-1)).log_softmax(dim=-1)


model = SignedGCN(data.num_features, 64)
model = pyg_sar.DistributedDataParallel(model).module  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def rows(z, ids):
    # plain: return z[ids]
    return pyg_sar.rows(z, ids, data.n_id)  # sar


def draw():
    # plain: triples = [structured_negative_sampling(each.flip(0)) for each in signed]
    # plain: triples = [torch.stack([src, dst, other]) for dst, src, other in triples]
    # plain: return triples, negative_sampling(data.edge_index)
    triples = [pyg_sar.negative_sampling(each, paired=True) for each in signed]  # sar
    return triples, pyg_sar.negative_sampling(data.edge_index)  # sar


def train():
    model.train()
    optimizer.zero_grad()
    z, (triples, others) = model(data.x, *signed), draw()
    loss = 0
    for kind, pairs in enumerate([triples[0][:2], triples[1][:2], others]):
        loss += mean(-model.discriminate(rows(z, pairs))[:, kind]) / 3
    for sign, ids in zip((1, -1), triples, strict=True):
        src, dst, other = rows(z, ids)
        nearer = (dst - src).square().sum(dim=-1) - (dst - other).square().sum(dim=-1)
        loss += 5 * mean((sign * nearer).clamp(min=0))
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    out = model.discriminate(rows(model(data.x, *signed), tests['pairs']))
    return [float(roc_auc_score(tests['sign'] > 0, out[:, 0] - out[:, 1]))]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    # plain: print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')
    if process.rank == 0:  # sar
        print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')  # sar
