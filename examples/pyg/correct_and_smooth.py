"""An MLP, then Correct and Smooth, as PyG's examples/correct_and_smooth.py.

It runs so, or without torchrun as one process:

    python examples/pyg/graphs.py citations graph.pt
    python -m pyg_sar.partition graph.pt parts/ --num-parts 3
    torchrun --local-ranks-filter 0 --nproc-per-node 3 examples/pyg/correct_and_smooth.py
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_geometric.nn import MLP, CorrectAndSmooth

# plain: import graphs
import pyg_sar  # sar

EPOCHS, DROPOUT = 300, 0.5

# plain: data = graphs.draw('citations')
pyg_sar.init()  # sar
data = pyg_sar.load_shard('parts/')  # sar
torch.manual_seed(0)

model = MLP([data.num_features, 200, 200, data.num_classes], dropout=DROPOUT)  # with batch norms
model = pyg_sar.DistributedDataParallel(model)  # sar
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
mask = data.train_mask


def train():
    model.train()
    optimizer.zero_grad()
    out = model(data.x[mask])
    loss = F.cross_entropy(out, data.y[mask])
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def accuracies(out):
    pred = out.argmax(dim=-1)
    masks = data.train_mask, data.val_mask, data.test_mask
    return [int((pred[mask] == data.y[mask]).sum()) / int(mask.sum()) for mask in masks]


@torch.no_grad()
def test():
    model.eval()
    return model(data.x).softmax(dim=-1)


best = 0
for _ in range(EPOCHS):
    loss, out = train(), test()
    if accuracies(out)[1] > best:
        best, y_soft = accuracies(out)[1], out

post = CorrectAndSmooth(50, 1.0, 50, 0.8, autoscale=False, scale=20)
accs = accuracies(y_soft)
y_soft = post.correct(y_soft, data.y[mask], mask, data.edge_index)
y_soft = post.smooth(y_soft, data.y[mask], mask, data.edge_index)
accs += accuracies(y_soft)
print('accuracy before and after', *(f'{acc:.4f}' for acc in accs))
