"""Link prediction with GCN, as PyG's examples/link_pred.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations_and_links graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/link_pred.py
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
pyg_sar.init()  # sar
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
        return (z[pairs[0]] * z[pairs[1]]).sum(dim=-1)


model = Net(data.num_features, 128, 64)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train():
    model.train()
    optimizer.zero_grad()
    z = model.encode(data.x, data.edge_index)
    pairs = data.edge_index
    # plain: others = negative_sampling(pairs)
    others = pyg_sar.negative_sampling(pairs)  # sar
    is_edge, is_none = model.decode(z, pairs), model.decode(z, others)
    is_link = torch.cat([torch.ones_like(is_edge), torch.zeros_like(is_none)])
    loss = bce(torch.cat([is_edge, is_none]), is_link)
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
    print(f'{epoch:3d}  loss {loss:.4f}  area under the curve {accs[0]:.4f}')
