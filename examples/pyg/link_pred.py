"""Link prediction with GCN, as PyG's examples/link_pred.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations_and_links graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --nproc-per-node 3 examples/pyg/link_pred.py

Each rank trains on a share of the pairs; all ranks score all pairs of the test.
"""

from __future__ import annotations

import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch_geometric.nn import GCNConv

# plain: import graphs
# plain: from torch_geometric.utils import negative_sampling
import pyg_sar  # sar

EPOCHS = 100

# plain: data, links = graphs.draw('citations_and_links')
process = pyg_sar.init()  # sar
data, links = pyg_sar.load_shard('parts/'), torch.load('beside.pt')  # sar
torch.manual_seed(0)


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def encode(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)

    def decode(self, z, pairs):
        # plain: src, dst = z[pairs]
        src, dst = pyg_sar.rows(z, pairs, data.n_id)  # sar
        return (src * dst).sum(dim=-1)


model = Net(data.num_features, 128, 64)
model = pyg_sar.DistributedDataParallel(model).module  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    z = model.encode(data.x, data.edge_index)
    pairs = links['train']
    # plain: others = negative_sampling(data.edge_index, num_neg_samples=pairs.size(1))
    others = pyg_sar.negative_sampling(data.edge_index, num_neg_samples=pairs.size(1))  # sar
    pairs = pairs[:, process.rank :: process.world_size]  # sar
    out = model.decode(z, torch.cat([pairs, others], dim=1))
    is_link = torch.cat([out.new_ones(pairs.size(1)), out.new_zeros(others.size(1))])
    # plain: loss = bce(out, is_link)
    loss = pyg_sar.global_mean(bce(out, is_link, reduction='none'))  # sar
    loss.backward()
    optimizer.step()
    return float(loss.detach())


@torch.no_grad()
def test():
    model.eval()
    out = model.decode(model.encode(data.x, data.edge_index), links['test'])
    is_link = torch.arange(out.numel()) < out.numel() // 2
    return [float(roc_auc_score(is_link, out))]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    # plain: print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')
    if process.rank == 0:  # sar
        print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')  # sar
