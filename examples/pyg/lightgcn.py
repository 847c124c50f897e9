"""LightGCN on ratings of books, as PyG's examples/lightgcn.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py ratings graph.pt beside.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/lightgcn.py
"""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader
from torch_geometric.nn import LightGCN

# plain: import graphs
import pyg_sar  # sar

EPOCHS, BATCH_SIZE, K = 100, 256, 5

# plain: data, pairs = graphs.draw('ratings')
pyg_sar.init()  # sar
data, pairs = pyg_sar.load_shard('parts/'), torch.load('beside.pt')  # sar
num_nodes = data.num_nodes
users, books = torch.arange(num_nodes).tensor_split([data.num_users])
torch.manual_seed(0)

model = LightGCN(num_nodes, embedding_dim=64, num_layers=2)
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
loader = DataLoader(range(pairs['train'].size(1)), BATCH_SIZE, shuffle=True)


def train():
    model.train()
    total = 0
    for index in loader:
        user, book = pairs['train'][:, index]
        other = torch.randint(len(users), num_nodes, (len(index),))
        triples = torch.stack([user, book, other])
        nodes = triples.unique()
        optimizer.zero_grad()
        ranks = model(data.edge_index, torch.cat([triples[:2], triples[::2]], dim=1))
        loss = model.recommendation_loss(*ranks.chunk(2), nodes)
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(index)
    return total / len(loader.dataset)


@torch.no_grad()
def test():
    model.eval()
    best = model.recommend(data.edge_index, src_index=users, dst_index=books, k=K)
    user, book = pairs['test']
    return [float((best[user] == book[:, None]).any(dim=1).float().mean())]


for epoch in range(1, EPOCHS + 1):
    loss, accs = train(), test()
    print(f'{epoch:3d}  loss {loss:.4f}  recall@{K} {accs[0]:.4f}')
