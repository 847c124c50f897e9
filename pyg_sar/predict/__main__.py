"""``python -m pyg_sar.predict train.py:make_model weights.pt data.pt out.npy --memory 4GB``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyg_sar.commands.command_line import Parser, checked, run_command
from pyg_sar.commands.users_model import made_model, named
from pyg_sar.monitor import bytes_text, parse_bytes
from pyg_sar.predict.predict import predict
from pyg_sar.predict.weights import set_weights


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    return run_command(_parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    forward = None if args.forward is None else named(args.forward)
    model = made_model(args.model)
    set_weights(model, args.weights)
    found = predict(
        model,
        args.data,
        args.out,
        memory=args.memory,
        spill=args.spill,
        num_parts=args.num_parts,
        forward=forward,
        nodes=args.nodes,
        progress=not args.quiet,
    )
    if not args.quiet:
        print(
            f'wrote {args.out}: {bytes_text(found.peak)} of large tensors at most, '
            f'{bytes_text(found.written)} written, {bytes_text(found.read)} read'
        )
    return 0


def _parser() -> Parser:
    description = 'Writes what a plain PyG model gives for all nodes, exactly, in bounded memory.'
    parser = Parser('pyg_sar.predict', description)
    add = parser.add_argument
    made = 'FILE.py:NAME of a function without arguments that makes the model, or of a model'
    add('model', metavar='MODEL', help=made)
    weights = 'a file of its state_dict, or a folder of pyg_sar.save_checkpoint'
    add('weights', type=Path, metavar='WEIGHTS', help=weights)
    data = 'a file as python -m pyg_sar.partition takes it, or a folder that it wrote'
    add('data', type=Path, metavar='DATA', help=data)
    out = 'NAME.npy; NAME-TYPE.npy for each type of nodes that the model gives'
    add('out', type=Path, metavar='OUT', help=out)
    memory = 'that large tensors may take together, e.g. 4GB'
    add('--memory', type=checked(parse_bytes), required=True, metavar='SIZE', help=memory)
    spill = 'a folder on a disk for what is evicted; default: that of DATA'
    add('--spill', type=Path, metavar='FOLDER', help=spill)
    parts = 'of the cut; default: so many that --memory is enough'
    add('--num-parts', type=int, metavar='P', help=parts)
    forward = 'FILE.py:NAME of forward(model, data); default: model(data.x, data.edge_index)'
    add('--forward', metavar='FUNCTION', help=forward)
    nodes = 'type of the nodes, where the model of a HeteroData gives one tensor'
    add('--nodes', metavar='TYPE', help=nodes)
    add('--quiet', action='store_true', help='show neither progress nor figures')
    return parser


if __name__ == '__main__':
    sys.exit(main())
