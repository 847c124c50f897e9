r"""Trains a GNN on a partition folder, full batch, exactly as one machine would.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 4 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 4 examples/train_full_batch.py parts/
    python examples/train_full_batch.py parts/    # one process, which owns all the parts

srun and mpirun start it as well (docs/clusters.md). torchrun gives each process one thread: set
OMP_NUM_THREADS to cores / processes. With --checkpoint DIR training goes on from the newest one
there, after a failure by itself:

    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --standalone --max-restarts 3 ...
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE

import pyg_sar

MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT}


def main() -> None:
    args = parse()
    process = pyg_sar.init()

    # A PyG Data: x, y, masks, edge_index of the whole graph, of which each rank holds a part.
    data = pyg_sar.load_shard(args.root).to(process.device)
    sets = labelled_sets(data)
    torch.manual_seed(args.seed)
    sizes = (data.num_features, args.hidden, args.layers, int(data.y.max()) + 1)
    heads = {'heads': 4} if args.model == 'gat' else {}
    model = MODELS[args.model](*sizes, norm='batch_norm', **heads).to(process.device)
    model = pyg_sar.DistributedDataParallel(model, mode=args.mode)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    last = pyg_sar.load_checkpoint(args.checkpoint, model, optimizer) if args.checkpoint else None
    for epoch in range(last.epoch + 1 if last else 1, args.epochs + 1):
        out = model(data.x, data.edge_index)
        loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # Of the weights before this step; every rank computes them, one prints.
        correct = (out.argmax(dim=-1) == data.y).float()
        means = {name: float(correct[data[f'{name}_mask']].mean()) for name in sets}
        if process.rank == 0:
            accuracies = '  '.join(f'{name} {mean:.4f}' for name, mean in means.items())
            print(f'epoch {epoch:3d}  loss {loss:.6f}  accuracy: {accuracies}', flush=True)
        if args.checkpoint:
            pyg_sar.save_checkpoint(args.checkpoint, model, optimizer, epoch=epoch)


def labelled_sets(data: Data) -> list[str]:
    """Which of train, val and test have nodes."""
    missing = [name for name in ('x', 'y', 'train_mask') if name not in data]
    if missing:
        hint = '; the partitioner makes masks with --split 0.6/0.2/0.2'
        sys.exit(f'expected x, y and train_mask in the folder (got no {", ".join(missing)}{hint})')
    sets = [name for name in ('train', 'val', 'test') if f'{name}_mask' in data]
    return [name for name in sets if data[f'{name}_mask'].any()]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--model', choices=MODELS, default='sage')
    parser.add_argument('--hidden', type=int, default=128, help='numbers per node and layer')
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--epochs', type=int, default=30)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--mode', default='sequential', help='or sequential_no_remat, one_shot')
    parser.add_argument('--checkpoint', metavar='DIR', help='save there, and go on from there')
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights')
    return parser.parse_args()


if __name__ == '__main__':
    main()
