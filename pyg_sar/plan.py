"""The command line: ``python -m pyg_sar.plan PARTS --model sage --hidden 256 --layers 3``.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from pyg_sar.commands.command_line import Parser, checked, positive, run_command
from pyg_sar.monitor import parse_bytes
from pyg_sar.planner import (
    Planner,
    Statistics,
    by_hand,
    predict_attention,
    predict_batches,
    read_statistics,
)
from pyg_sar.planner.rehearsal import MODES, Job
from pyg_sar.planner.report import (
    BATCH_NOTE,
    NOTE,
    RELATIONS_NOTE,
    as_dict,
    attention_table,
    batch_table,
    format_bytes,
    rank_table,
    table,
)
from pyg_sar.planner.turns import predict_turns, probe_disk
from pyg_sar.planner.turns import told as told_of_turns

_MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT, 'gin': GIN}
_OPTIMIZERS = {'adam': torch.optim.Adam, 'sgd': torch.optim.SGD}
_SAMPLED_ONLY = {'batch_size': '--batch-size', 'links': '--links'}
_FULL_BATCH_ONLY = {
    'attention': '--attention',
    'memory': '--memory',
    'mode': '--mode',
    'bandwidth': '--bandwidth',
    'timed': '--no-time',
}
_MOST_RANKS, _MOST_LISTED = 1 << 14, 64


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    return run_command(_parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    text, figures = _told(args)
    print(text)
    if args.json is not None:
        Path(args.json).write_text(json.dumps(figures, indent=1) + '\n', encoding='utf-8')
    return 0


def _told(args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """What is told, and its figures."""
    others = _SAMPLED_ONLY if args.sampled is None else _FULL_BATCH_ONLY
    for name, option in others.items():
        if getattr(args, name) != _parser().get_default(name):
            whose = "'--sampled'" if args.sampled is None else 'full batches'
            raise ValueError(f"'{option}' is for {whose} alone (got it for the others)")
    if args.in_turns and (args.memory is None or args.disk is None or args.sampled is not None):
        raise ValueError("'--in-turns' needs '--memory' and '--disk', and full batches")
    for name, option in (('disk', '--disk'), ('host_memory', '--host-memory')):
        if not args.in_turns and getattr(args, name) is not None:
            raise ValueError(f"'{option}' is for '--in-turns' alone (got it without)")
    base, statistics = _base_bytes(), _statistics(args)
    job, counts = _job(args, statistics), args.ranks or _counts(statistics)
    size = f'{statistics.num_nodes:,} nodes, {statistics.num_edges:,} directed edges; {args.model}'
    if args.sampled is not None:
        batches = [
            predict_batches(statistics, job, n, args.sampled, args.batch_size, args.links)
            for n in counts
        ]
        seeds = 'seeds' if args.links is None else f'links with {args.links:g} negatives'
        text = (
            f'{size}, hidden {args.hidden}, batches of {args.batch_size:,} {seeds} of each part, '
            f'{args.sampled}\n\nlargest rank, for each number of ranks\n'
            f'{batch_table(batches, base)}\n\n'
            f'{format_bytes(base)} for Python and its libraries are in all memory. {BATCH_NOTE}'
        )
        return text, {'base_bytes': base, 'batches': [vars(batch) for batch in batches]}
    planner = Planner(statistics, job, bandwidth=args.bandwidth * 1e9, timed=args.timed)
    predictions = [planner.predict(n) for n in counts]
    report = {'base_bytes': base, 'predictions': [as_dict(p, base) for p in predictions]}
    told = [
        f'{size}, {args.layers} layers, hidden {args.hidden}, {args.mode}, {args.dtype}, '
        f'{args.optimizer}'
    ]
    num_parts = None if statistics.folder is None else statistics.folder.num_parts
    told += [
        f'{num_parts} ranks, each of them\n{rank_table(prediction)}'
        for prediction in predictions
        if prediction.num_ranks == num_parts and num_parts <= _MOST_LISTED
    ]
    told.append(f'largest rank, for each number of ranks\n{table(predictions, base)}')
    if args.attention is not None:
        attention = [
            predict_attention(
                statistics.num_nodes,
                n,
                width=args.attention,
                heads=args.heads,
                layers=args.layers,
                dtype=job.dtype,
                timed=args.timed,
            )
            for n in counts
        ]
        report['attention'] = [vars(each) for each in attention]
        told.append(
            f'beside that, softmax attention to all nodes in every layer, {args.attention} wide '
            f'in {args.heads} heads\n{attention_table(attention)}'
        )
    if args.in_turns:
        rates = probe_disk(args.disk)
        host = args.host_memory or 0
        turns = [predict_turns(p, args.memory, *rates, host) for p in predictions]
        told += [
            f'{p.num_ranks} parts: {told_of_turns(found, args.epochs, rates)}'
            for p, found in zip(predictions, turns, strict=True)
        ]
        report['in_turns'] = [vars(found) for found in turns]
    elif args.memory is not None:
        text, report['least_ranks'] = _least_ranks(planner, args.memory, base)
        told.append(text)
    told.append(
        f'Assumed: {args.bandwidth:g} GB/s received by each rank, {torch.get_num_threads()} '
        f'threads per rank as here, {format_bytes(base)} for Python and its libraries.\n{NOTE}'
    )
    if statistics.num_relations > 1:
        told.append(f'The {statistics.num_relations} relations are {RELATIONS_NOTE}')
    return '\n\n'.join(told), report


def _base_bytes() -> int:
    """What this process holds just after its imports (Linux; elsewhere a typical value)."""
    status = Path('/proc/self/status')
    found = re.search(r'VmRSS:\s*(\d+)', status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 330 << 20


def _statistics(args: argparse.Namespace) -> Statistics:
    if args.parts is not None:
        if (args.nodes, args.edges, args.cut) != (None, None, []):
            raise ValueError("expected a partition folder or '--nodes' and '--edges' (got both)")
        return read_statistics(args.parts)
    if None in (args.nodes, args.edges):
        raise ValueError("expected a partition folder, or '--nodes' and '--edges' (got neither)")
    return by_hand(args.nodes, args.edges, args.cut)


def _job(args: argparse.Namespace, statistics: Statistics) -> Job:
    width: int | None = args.in_channels or statistics.in_channels
    classes: int | None = args.out_channels or statistics.num_classes
    if width is None or classes is None:
        missing = "'--out', the number of classes" if width else "'--in', the width of the features"
        raise ValueError(
            f'expected {missing} (got none, and no partition folder that tells: its graph has '
            "features 'x' and integer labels 'y')"
        )
    if not 0 <= args.dropout < 1:
        raise ValueError(f"'--dropout' must lie in [0, 1) (got {args.dropout})")
    if args.model == 'gat' and args.hidden % args.heads:
        raise ValueError(f"'--heads' must divide '--hidden' (got {args.heads} and {args.hidden})")
    if args.attention is not None and args.attention % args.heads:
        got = f'{args.heads} and {args.attention}'
        raise ValueError(f"'--heads' must divide '--attention' (got {got})")
    model = _MODELS[args.model](
        width,
        args.hidden,
        args.layers,
        classes,
        norm={'batch': 'batch_norm', 'none': None}[args.norm],
        dropout=args.dropout,
        **({'heads': args.heads} if args.model == 'gat' else {}),
    )
    optimizer = functools.partial(_OPTIMIZERS[args.optimizer], lr=0.01)
    return Job(model, width, args.mode, optimizer, getattr(torch, args.dtype))


def _counts(statistics: Statistics) -> list[int]:
    """Powers of 2 about the numbers of ranks of which the cut is known."""
    known = [p.num_ranks for p in statistics.points]
    if statistics.folder is not None:
        known = [statistics.folder.num_parts]
    if known in ([], [1]):
        return [1]  # nothing to extrapolate from
    powers = [1 << i for i in range(15) if 1 << i <= 2 * max(known)]
    counts = powers if len(known) == 1 and max(known) <= 16 else powers[-4:]
    return sorted({*counts, *known})


def _least_ranks(planner: Planner, memory: int, base: int) -> tuple[str, int | None]:
    statistics = planner.statistics
    most = min(_MOST_RANKS, statistics.num_nodes) if statistics.points else 1
    found = planner.least_ranks(lambda p: p.memory_bytes + base <= memory, most)
    if found is None:
        return f'{most:,} ranks of {format_bytes(memory)} do not suffice', None
    needed = format_bytes(found.memory_bytes + base)
    text = (
        f'least number of ranks with {format_bytes(memory)} each: {found.num_ranks:,}, of which '
        f'the largest needs {needed}'
    )
    return text, found.num_ranks


def _memory(text: str) -> int:
    size = parse_bytes(text)
    if size < 1 << 20:
        if text.isdecimal():
            raise ValueError(f'{size} bytes? say {size}GB')
        raise ValueError(f'expected 1MB or more (got {text})')
    return size


def _share(text: str) -> tuple[float, int]:
    found = re.fullmatch(r'([0-9]+\.?[0-9]*|\.[0-9]+)@([0-9]+)', text)
    if found is None:
        raise ValueError(
            f"expected NUMBER@RANKS, such as 0.2@64 for a fifth at 64 ranks (got '{text}')"
        )
    return float(found[1]), int(found[2])


def _ints(text: str, least: int, what: str) -> list[int]:
    if re.fullmatch(r'-?[0-9]+(,-?[0-9]+)*', text) is None or min(_split(text)) < least:
        raise ValueError(f"expected {what} (got '{text}')")
    return _split(text)


def _ratio(text: str) -> float:
    if re.fullmatch(r'[0-9]+\.?[0-9]*|\.[0-9]+', text) is None:
        raise ValueError(f"expected a number of negatives for a link, 0 or more (got '{text}')")
    return float(text)


def _split(text: str) -> list[int]:
    return [int(entry) for entry in text.split(',')]


def _parser() -> Parser:
    description = 'Predicts memory, traffic and time of training, before anything is loaded.'
    parser = Parser('pyg_sar.plan', description)
    add, positive_int = parser.add_argument, checked(positive)
    default = functools.partial(add, help='default: %(default)s')
    add('parts', nargs='?', metavar='PARTS', help='a folder of python -m pyg_sar.partition')
    default('--model', choices=sorted(_MODELS), default='sage')
    default('--hidden', type=positive_int, default=256, metavar='H')
    default('--layers', type=positive_int, default=3, metavar='L')
    for name, letter in (('in', 'F'), ('out', 'C')):
        known = "default: the folder's"
        add(f'--{name}', type=positive_int, dest=f'{name}_channels', metavar=letter, help=known)
    of_gat = 'of gat and of --attention; default: %(default)s'
    add('--heads', type=positive_int, default=4, help=of_gat)
    to_all = 'attention to all nodes in every layer, so wide, as of GPSConv(attn_type="multihead")'
    add('--attention', type=positive_int, metavar='D', help=to_all)
    default('--mode', choices=MODES, default='sequential')
    default('--norm', choices=('batch', 'none'), default='batch')
    default('--dropout', type=float, default=0.0, metavar='P')
    default('--optimizer', choices=sorted(_OPTIMIZERS), default='adam')
    default('--dtype', choices=('float32', 'float64'), default='float32')
    default('--bandwidth', type=float, default=1.25, metavar='GB/S')
    counts = checked(lambda text: _ints(text, 1, 'numbers of ranks such as 1,2,4'))
    about = "default: powers of 2 about the folder's parts"
    add('--ranks', type=counts, metavar='R,R,...', help=about)
    fans = checked(lambda text: _ints(text, -1, 'neighbours by hop such as 15,10,5, -1 for all'))
    by_hop = 'mini-batches of NeighborLoader, with so many neighbours by hop; -1 for all'
    add('--sampled', type=fans, metavar='K,K,...', help=by_hop)
    by_link = 'batches of LinkNeighborLoader, with so many binary negatives for each link (1)'
    ratio = checked(_ratio)
    add('--links', nargs='?', type=ratio, const=1.0, metavar='NEGATIVES', help=by_link)
    of_part = 'seeds of a part in a batch, nodes or links; default: %(default)s'
    add('--batch-size', type=positive_int, default=1024, metavar='B', help=of_part)
    least = 'find the least number of ranks with so much, e.g. 64GB'
    add('--memory', type=checked(_memory), metavar='SIZE', help=least)
    turns = 'all ranks in turn in one process, with so much memory as --memory says'
    add('--in-turns', action='store_true', help=turns)
    add('--disk', type=Path, metavar='FOLDER', help='of what waits in turns; its rate is probed')
    before = 'of a GPU in turns, whose memory is --memory: what waits on the host before the disk'
    add('--host-memory', type=checked(_memory), metavar='SIZE', help=before)
    of_run = 'of which bytes written are told, with --in-turns; default: %(default)s'
    add('--epochs', type=positive_int, default=100, metavar='E', help=of_run)
    add('--json', metavar='FILE', help='write the figures there, too')
    add('--no-time', dest='timed', action='store_false', help='skip timing this machine')
    by_hand = parser.add_argument_group('without PARTS').add_argument
    by_hand('--nodes', type=int, metavar='N', help='nodes of the graph')
    by_hand('--edges', type=int, metavar='E', help='directed edges of the graph')
    share = 'share of the edges cut at a number of ranks'
    shares = checked(_share)
    by_hand('--cut', nargs='+', type=shares, default=[], metavar='SHARE@RANKS', help=share)
    return parser


if __name__ == '__main__':
    sys.exit(main())
