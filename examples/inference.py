"""Writes the predictions of a trained model for all nodes, in the order of their original ids.

    torchrun --nproc-per-node 4 examples/train_full_batch.py parts/ --checkpoint run/
    torchrun --nproc-per-node 4 examples/inference.py parts/ run/ predictions.npy
    python examples/inference.py parts/ weights.pt predictions.npy    # one process
    pyg-sar run --in-turns --memory 4GB --spill . examples/inference.py parts/ run/ rows.npy

The weights come from a folder of pyg_sar.save_checkpoint, written by any number of ranks, or from a
file of torch.save(model.state_dict(), ...) of plain PyG. The graph may be another one than that of
the training, with features and classes of the same meaning. Give the options that the model was
trained with.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from train_full_batch import MODELS

import pyg_sar


def main() -> None:
    args = parse()
    process = pyg_sar.init()
    data = pyg_sar.load_shard(args.root).to(process.device)
    sizes = (data.num_features, args.hidden, args.layers, args.classes or data.num_classes)
    heads = {'heads': 4} if args.model == 'gat' else {}
    model = MODELS[args.model](*sizes, norm='batch_norm', **heads).to(process.device)
    if Path(args.weights).is_file():
        model.load_state_dict(
            torch.load(args.weights, map_location=process.device, weights_only=True)
        )
    elif pyg_sar.load_checkpoint(args.weights, model) is None:
        raise SystemExit(f"error: expected a checkpoint in '{args.weights}' (got none)")

    model = pyg_sar.DistributedDataParallel(model, mode=args.mode).eval()
    with torch.no_grad():
        out = model(data.x, data.edge_index)
    rows = out.softmax(dim=-1) if args.probabilities else out.argmax(dim=-1)
    pyg_sar.save_rows(args.out, rows, data)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('root', help='folder written by python -m pyg_sar.partition')
    parser.add_argument('weights', help='folder of checkpoints, or a file of a state_dict')
    parser.add_argument('out', help='the file NAME.npy to write')
    parser.add_argument(
        '--probabilities', action='store_true', help='of all classes, not the class'
    )
    parser.add_argument('--model', choices=MODELS, default='sage')
    parser.add_argument('--hidden', type=int, default=128, help='numbers per node and layer')
    parser.add_argument('--layers', type=int, default=3)
    parser.add_argument('--classes', type=int, help='of the model; default: those of the graph')
    parser.add_argument('--mode', default='sequential', help='or sequential_no_remat, one_shot')
    return parser.parse_args()


if __name__ == '__main__':
    main()
