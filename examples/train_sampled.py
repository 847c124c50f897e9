r"""Trains a GNN on mini-batches that are sampled from a partition folder, and evaluates it exactly.

    python -m pyg_sar.partition examples/data/wordnet_noun.npz parts/ --num-parts 2 \
        --split 0.6/0.2/0.2
    torchrun --nproc-per-node 2 examples/train_sampled.py parts/ --exact-epochs 5
    python examples/train_sampled.py parts/    # one process, which owns all the parts

Batches have the same seeds on any number of processes. The last --exact-epochs are full batches,
with the exact gradient. Several processes on one machine share its cores: set OMP_NUM_THREADS to
cores / processes. With --checkpoint DIR a run that was ended, at whatever batch, goes on from the
newest checkpoint there with the batches that were left.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GCN, GraphSAGE
from train_full_batch import labelled_sets

import pyg_sar

MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT}


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root)
    sets = labelled_sets(data)
    loader = pyg_sar.NeighborLoader(
        data,
        args.fan_outs,
        data.train_mask,
        batch_size=args.batch_size,
        shuffle=True,
        seed=args.seed,
    )
    torch.manual_seed(args.seed)
    sizes = (data.num_features, args.hidden, len(args.fan_outs), int(data.y.max()) + 1)
    heads = {'heads': 4} if args.model == 'gat' else {}
    model = pyg_sar.DistributedDataParallel(MODELS[args.model](*sizes, **heads))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    last = None
    if args.checkpoint:
        last = pyg_sar.load_checkpoint(args.checkpoint, model, optimizer, loader=loader)
    step = last.epoch if last else 0  # how many are behind
    losses = last.extra['losses'] if last else []
    num_sampled = args.epochs * len(loader)
    num_steps = num_sampled + args.exact_epochs
    while step < num_steps:
        is_sampled = step < num_sampled
        if not is_sampled or step % len(loader) == 0:
            losses = []  # of the steps of this epoch
        model.train()
        for loss in batch_losses(model, loader) if is_sampled else full_batch_loss(model, data):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            losses.append(loss.item())
            if args.checkpoint and (step % args.every == 0 or step == num_steps):
                extra = {'losses': losses}
                pyg_sar.save_checkpoint(
                    args.checkpoint, model, optimizer, epoch=step, loader=loader, extra=extra
                )

        model.eval()
        with torch.no_grad():
            out = model(data.x, data.edge_index)  # of the whole graph
        correct = (out.argmax(dim=-1) == data.y).float()
        means = {name: float(correct[data[f'{name}_mask']].mean()) for name in sets}
        if process.rank == 0:
            epoch = step // len(loader) if is_sampled else args.epochs + step - num_sampled
            accuracies = '  '.join(f'{name} {mean:.4f}' for name, mean in means.items())
            loss = sum(losses) / len(losses)
            print(f'epoch {epoch:3d}  loss {loss:.6f}  accuracy: {accuracies}', flush=True)


def batch_losses(model: torch.nn.Module, loader: pyg_sar.NeighborLoader) -> Iterator[Tensor]:
    """Of one batch after another: the mean over the seeds of all ranks."""
    for batch in loader:
        hops: dict[str, Any] = {  # what no later layer reads is left out
            'num_sampled_nodes_per_hop': batch.num_sampled_nodes,
            'num_sampled_edges_per_hop': batch.num_sampled_edges,
        }
        out = model(batch.x, batch.edge_index, **hops)[: batch.batch_size]
        y = batch.y[: batch.batch_size]
        yield pyg_sar.loader.mean_of_batches(
            F.cross_entropy(out, y, reduction='none', ignore_index=-1)
        )


def full_batch_loss(model: torch.nn.Module, data: Data) -> Iterator[Tensor]:
    """Of the whole graph."""
    out = model(data.x, data.edge_index)
    yield F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('--model', choices=MODELS, default='sage')
    parser.add_argument('--hidden', type=int, default=128, help='numbers per node and layer')
    parser.add_argument('--fan-outs', type=int, nargs='+', default=[15, 10, 5], help='by layer')
    parser.add_argument(
        '--batch-size', type=int, default=1024, help='training nodes of all processes'
    )
    parser.add_argument('--epochs', type=int, default=5, help='of sampled batches')
    parser.add_argument('--exact-epochs', type=int, default=0, help='of one full batch, after them')
    parser.add_argument('--lr', type=float, default=0.003)
    parser.add_argument('--checkpoint', metavar='DIR', help='save there, and go on from there')
    parser.add_argument(
        '--every', type=int, default=100, help='steps from checkpoint to checkpoint'
    )
    parser.add_argument('--seed', type=int, default=0, help='of the initial weights and batches')
    return parser.parse_args()


if __name__ == '__main__':
    main()
