"""``python -m pyg_sar.predict parts train.py:make_model weights.pt out.npy --memory 4GB``.

The parts go through the model in turn, in evaluation and without gradients. Nothing imports this.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.checkpoint import save_rows
from pyg_sar.commands.command_line import Parser, checked, run_command
from pyg_sar.commands.users_model import FORWARD, MODEL, load_model, load_named, run_model
from pyg_sar.ddp.wrap import wrap
from pyg_sar.in_turns.run import play
from pyg_sar.load import load_shard
from pyg_sar.monitor import memory_size
from pyg_sar.predict.weights import set_weights
from pyg_sar.shard.format.meta import read_meta


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    return run_command(_parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    if args.parts.is_file():
        raise ValueError(
            f"expected a folder of partitions (got the file '{args.parts}'): "
            f'python -m pyg_sar.partition {args.parts} parts --num-parts P makes one of a graph'
        )
    _check_out(args.out)
    num_parts = read_meta(args.parts).num_parts
    forward = run_model if args.forward is None else load_named(args.forward)
    model = load_model(args.model)
    set_weights(model, args.weights)
    parameters = {id(parameter): parameter for parameter in model.parameters()}

    def on_rank() -> None:
        data = load_shard(args.parts)
        own_model = wrap(copy.deepcopy(model, dict(parameters))).eval()
        with torch.no_grad():
            _save(args.out, forward(own_model, data), data, args.nodes)

    figures = play(
        on_rank,
        num_parts,
        memory=args.memory * 3 // 4,  # the rest is for new tensors, until others are evicted
        spill=args.spill or args.parts.resolve().parent,
        limit=args.memory,
    ).figures
    if not args.quiet:
        print(f'wrote {args.out}: {figures}')
    return 0


def _check_out(out: Path) -> None:
    if out.suffix != '.npy':
        raise ValueError(f"expected a path that ends in .npy (got '{out}')")
    if not out.parent.is_dir():
        raise FileNotFoundError(f'no such folder: {out.parent}')
    if not os.access(out.parent, os.W_OK) or out.is_dir():
        raise PermissionError(f'cannot write {out}')


def _save(out: Path, values: Any, data: Data | HeteroData, nodes: str | None) -> None:
    is_hetero = isinstance(data, HeteroData)
    types = data.node_types if is_hetero else []
    if nodes is not None and nodes not in types:
        raise ValueError(f"'nodes' must be a type of nodes of the graph, {types} (got '{nodes}')")
    if isinstance(values, dict):
        for key in sorted(values) if nodes is None else [nodes]:
            if key not in values or key not in types:
                raise ValueError(f"expected rows of '{key}' nodes (got {sorted(values)})")
            path = out.with_name(f'{out.stem}-{key}.npy') if nodes is None else out
            save_rows(path, values[key], data[key])
        return
    if not isinstance(values, Tensor):
        raise ValueError(f'expected a tensor of the model, or a dict of them (got {type(values)})')
    if is_hetero and nodes is None:
        raise ValueError(
            "expected 'nodes', the type of the nodes that the model's tensor has rows of: "
            f'{types} (got none)'
        )
    save_rows(out, values, data if nodes is None else data[nodes])


def _parser() -> Parser:
    description = 'Writes what a plain PyG model gives for all nodes, exactly, in bounded memory.'
    parser = Parser('pyg_sar.predict', description)
    add = parser.add_argument
    parts = 'a folder of python -m pyg_sar.partition; more parts need less memory'
    add('parts', type=Path, metavar='PARTS', help=parts)
    add('model', metavar='MODEL', help=MODEL)
    weights = 'a file of its state_dict, or a folder of pyg_sar.save_checkpoint'
    add('weights', type=Path, metavar='WEIGHTS', help=weights)
    out = 'NAME.npy; NAME-TYPE.npy for each type of nodes that the model gives'
    add('out', type=Path, metavar='OUT', help=out)
    memory = 'that large tensors may take together, e.g. 4GB'
    add('--memory', type=checked(memory_size), required=True, metavar='SIZE', help=memory)
    spill = 'a folder on a disk for what is evicted; default: the one that PARTS lies in'
    add('--spill', type=Path, metavar='FOLDER', help=spill)
    add('--forward', metavar='FUNCTION', help=FORWARD)
    nodes = 'type of the nodes, where the model of a HeteroData gives one tensor'
    add('--nodes', metavar='TYPE', help=nodes)
    add('--quiet', action='store_true', help='show no figures')
    return parser


if __name__ == '__main__':
    sys.exit(main())
