"""The command ``pyg-sar partition SOURCE OUT --num-parts P``, also ``python -m pyg_sar.partition``.

No other module imports this one at its top: runpy warns of what is imported before it runs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import warnings
from collections.abc import Sequence

from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.options import BALANCES, OBJECTIVES, CutOptions, check_seed
from pyg_sar.partition.partition_graph import cut_graph
from pyg_sar.partition.sources import NAMES, load_source
from pyg_sar.partition.sources.datasets import transformed
from pyg_sar.partition.sources.node_tables import NodeTableOptions
from pyg_sar.partition.sources.pieces import is_read
from pyg_sar.partition.sources.raw import parse_shape
from pyg_sar.partition.sources.reverse import add_reverse_edges
from pyg_sar.utils.command_line import Parser, Progress, printable, run_command

DESCRIPTION = 'Cuts a graph into parts, one shard per part, for distributed training.'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``python -m pyg_sar.partition``; returns its exit code."""
    prog = 'python -m pyg_sar.partition'
    parser = Parser(prog, description=DESCRIPTION)
    add_arguments(parser)
    words = list(sys.argv[1:] if argv is None else argv)
    return run_command(parser, lambda arguments: run(arguments, prog, words), words)


def run(arguments: argparse.Namespace, prog: str, words: Sequence[str]) -> int:
    """Cuts the graph; returns the exit code. META.json notes `prog` and the words after it."""
    with warnings.catch_warnings():
        # They are news for the user here: always shown, and without file name and source line.
        warnings.simplefilter('default', UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(
            f'note: {printable(str(message))}', file=sys.stderr
        )
        sys.path.append(os.getcwd())  # has modules of the user, and is not on that of `pyg-sar`
        try:
            return _run(arguments, [*prog.split(), *words])
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt('interrupted, nothing was written') from interrupt


def _run(args: argparse.Namespace, command: Sequence[str]) -> int:
    def read(scratch: Scratch) -> Data | HeteroData:
        with Progress(quiet=args.quiet) as shown, is_read.set(shown.share('reading')):
            shown.phase('reading', delay=0.5)  # a mistake is told alone
            shape = None if args.shape is None else parse_shape(args.shape)
            data = load_source(
                args.source,
                root=args.datasets,
                scratch=scratch,
                relabel=args.relabel,
                tables=_tables(args),
                shape=shape,
                dtype=args.dtype,
            )
            if args.undirected:
                data = add_reverse_edges(data, scratch)
            for text in args.transform:
                shown.phase('transform', delay=0.5)
                data = transformed(data, text, seed=args.seed)
        return data

    summary = cut_graph(
        read,
        args.num_parts,
        args.out,
        CutOptions(args.method, check_seed(args.seed), args.objective, args.balance),
        split=args.split,
        force=args.force,
        progress=not args.quiet,
        command=command,
    )
    if not args.quiet:
        print(summary)
        print(f'wrote {shlex.quote(os.fspath(args.out))}')
    return 0


def _tables(args: argparse.Namespace) -> NodeTableOptions:
    x = [name.strip() for name in (args.x or '').split(',')]
    named = {name: getattr(args, name) for name in ('nodes', 'id', 'y', 'train', 'val', 'test')}
    return NodeTableOptions(x=tuple(name for name in x if name), **named)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds SOURCE, OUT and the options."""
    add = parser.add_argument
    sources = (
        'a .pt file (PyG Data, HeteroData or dict of tensors), an .npz file, a folder of .npy '
        'files, a list of edges as text, a .parquet file of edges, a folder of such, an .mtx file, '
        'a .graph file of METIS, a folder of GraphSAINT, or one of '
    )
    add('source', metavar='SOURCE', help=sources + ', '.join(NAMES))
    add('out', metavar='OUT', help='folder to write; must not exist or be empty')
    add('--num-parts', type=int, metavar='P', required=True, help='number of parts')
    method = (
        'metis; ldg (streaming, for graphs beyond METIS); kaminpar (if installed); random; range; '
        'or file:PATH (.npy, .pt or .txt with one part id per node); default: %(default)s'
    )
    add('--method', default='metis', help=method)
    add('--seed', type=int, default=0, help='default: %(default)s')
    objective = 'few edges between parts, or few rows exchanged per layer; default: %(default)s'
    add('--objective', choices=OBJECTIVES, default='cut', help=objective)
    balance = 'what every part has an equal share of; default: %(default)s'
    add('--balance', choices=BALANCES, default='nodes', help=balance)
    datasets = 'folder with datasets; default: dataset'
    add('--datasets', metavar='DIR', default='dataset', help=datasets)
    nodes = 'table of the nodes (.parquet or .csv) beside SOURCE, a table of edges'
    add('--nodes', metavar='TABLE', help=nodes)
    ids = 'column of the ids; default: the one called id, node_id, name or index'
    add('--id', metavar='COLUMN', help=ids)
    add('--y', metavar='COLUMN', help='column of the labels; default: y')
    x = 'columns of the features, numbers or lists of such; default: lists called x or features'
    add('--x', metavar='COLUMN,...', help=x)
    mask = 'rows in {}_mask: a column of bools, or those with a value, as split={}'
    for option in ('train', 'val', 'test'):
        add(f'--{option}', metavar='COLUMN[=VALUE]', help=mask.format(option, option))
    shape = 'shape of a SOURCE that is numbers alone, as np.memmap writes them: 2,E or E,2'
    add('--shape', metavar='2,E', help=shape)
    add('--dtype', metavar='TYPE', help='type of these numbers, such as int32')
    relabel = 'number the ids of edges, which may have gaps, from 0 on, and keep them as names'
    add('--relabel', action='store_true', help=relabel)
    undirected = 'add the reverse of every edge, as T.ToUndirected does'
    add('--undirected', action='store_true', help=undirected)
    transform = (
        'apply a transform of PyG, or of a module of yours, to the whole graph: '
        "'NormalizeFeatures', 'AddRandomWalkPE(walk_length=20)'; may be given several times"
    )
    add('--transform', metavar='NAME', action='append', default=[], help=transform)
    split = 'random split of the labelled nodes, such as 0.6/0.2/0.2'
    add('--split', metavar='TRAIN/VAL/TEST', help=split)
    add('--force', action='store_true', help='replace an earlier partition in OUT')
    add('--quiet', action='store_true', help='no progress, no summary')


if __name__ == '__main__':
    sys.exit(main())
