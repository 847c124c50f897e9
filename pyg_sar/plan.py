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

import torch
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

from pyg_sar.command_line import Parser, run
from pyg_sar.monitor import parse_bytes
from pyg_sar.planner import Planner, Statistics, by_hand, predict_batches, read_statistics
from pyg_sar.planner.rehearsal import MODES, Job
from pyg_sar.planner.report import (
    BATCH_NOTE,
    NOTE,
    as_dict,
    batch_table,
    format_bytes,
    rank_table,
    table,
)

_NUMBER = r'[0-9]+\.?[0-9]*|\.[0-9]+'
_MODELS = {'sage': GraphSAGE, 'gcn': GCN, 'gat': GAT, 'gin': GIN}
_OPTIMIZERS = {'adam': torch.optim.Adam, 'sgd': torch.optim.SGD}
_MOST_RANKS, _MOST_LISTED = 1 << 14, 64


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    args = _parser().parse_args(argv)
    return run(lambda: _run(args))


def _check_options(args: argparse.Namespace) -> None:
    """Raises a ValueError for an option that would be ignored."""
    other = ('memory', 'mode', 'bandwidth', 'timed') if args.sampled else ('batch_size',)
    for name in other:
        if getattr(args, name) != _parser().get_default(name):
            option = {'timed': '--no-time'}.get(name, f'--{name.replace("_", "-")}')
            whose = 'full batches' if args.sampled else "'--sampled'"
            raise ValueError(f"'{option}' is for {whose} alone (got it for the others)")


def _run(args: argparse.Namespace) -> int:
    _check_options(args)
    base = _base_bytes()
    memory = None if args.memory is None else parse_bytes(args.memory)
    counts = None if args.ranks is None else parse_counts(args.ranks)
    statistics = _statistics(args)
    job = _job(args, statistics)
    if args.sampled is not None:
        return _tell_of_batches(args, statistics, job, counts or _counts(statistics), base)
    planner = Planner(statistics, job, bandwidth=args.bandwidth * 1e9, timed=args.timed)
    predictions = [planner.predict(n) for n in counts or _counts(statistics)]
    print(
        f'{statistics.num_nodes:,} nodes, {statistics.num_edges:,} directed edges; {args.model}, '
        f'{args.layers} layers, hidden {args.hidden}, {args.mode}, {args.dtype}, {args.optimizer}'
    )
    report = {'base_bytes': base, 'predictions': [as_dict(p, base) for p in predictions]}
    num_parts = None if statistics.folder is None else statistics.folder.num_parts
    for prediction in predictions:
        if prediction.num_ranks == num_parts and num_parts <= _MOST_LISTED:
            print(f'\n{num_parts} ranks, each of them\n{rank_table(prediction)}')
    print(f'\nlargest rank, for each number of ranks\n{table(predictions, base)}')
    if memory is not None:
        report['least_ranks'] = _print_least(planner, memory, base)
    print(
        f'\nAssumed: {args.bandwidth:g} GB/s received by each rank, {torch.get_num_threads()} '
        f'threads per rank as here, {format_bytes(base)} for Python and its libraries.\n{NOTE}'
    )
    if statistics.num_relations > 1:
        print(
            f'\nThe {statistics.num_relations} relations are taken together, as one graph with '
            'features of the mean\nwidth. A conv for each of them (HeteroConv) needs more: in each '
            'layer a row for\nevery destination of every relation. Expect more than these figures.'
        )
    if args.json is not None:
        Path(args.json).write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')
    return 0


def _tell_of_batches(
    args: argparse.Namespace, statistics: Statistics, job: Job, counts: Sequence[int], base: int
) -> int:
    fans = parse_fans(args.sampled)
    batches = [predict_batches(statistics, job, n, fans, args.batch_size) for n in counts]
    print(
        f'{statistics.num_nodes:,} nodes, {statistics.num_edges:,} directed edges; {args.model}, '
        f'hidden {args.hidden}, batches of {args.batch_size:,} seeds of each part, {fans}\n\n'
        f'largest rank, for each number of ranks\n{batch_table(batches, base)}\n\n'
        f'{format_bytes(base)} for Python and its libraries are in all memory. {BATCH_NOTE}'
    )
    if args.json is not None:
        report = {'base_bytes': base, 'batches': [vars(batch) for batch in batches]}
        Path(args.json).write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')
    return 0


def _base_bytes() -> int:
    """What this process holds just after its imports (Linux; elsewhere a typical value)."""
    status = Path('/proc/self/status')
    found = re.search(r'VmRSS:\s*(\d+)', status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 330 << 20


def _statistics(args: argparse.Namespace) -> Statistics:
    given = [args.nodes, args.edges]
    if args.parts is not None:
        if given != [None, None] or args.cut or args.halo:
            raise ValueError("expected a partition folder or '--nodes' and '--edges' (got both)")
        return read_statistics(args.parts)
    if None in given:
        raise ValueError("expected a partition folder, or '--nodes' and '--edges' (got neither)")
    cut, halo = ([parse_share(text) for text in texts] for texts in (args.cut, args.halo))
    return by_hand(args.nodes, args.edges, cut, halo, imbalance=args.imbalance)


def _job(args: argparse.Namespace, statistics: Statistics) -> Job:
    width = _known('--in', args.in_channels, statistics.in_channels, 'the width of the features')
    classes = _known('--out', args.out_channels, statistics.num_classes, 'the number of classes')
    if not 0 <= args.dropout < 1:
        raise ValueError(f"'--dropout' must lie in [0, 1) (got {args.dropout})")
    if args.model == 'gat' and args.hidden % args.heads:
        raise ValueError(f"'--heads' must divide '--hidden' (got {args.heads} and {args.hidden})")
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


def parse_share(text: str) -> tuple[float, int]:
    """``'0.2@64'``: a number at a number of ranks; a ValueError for other forms."""
    found = re.fullmatch(rf'({_NUMBER})@([0-9]+)', text)
    if found is None:
        raise ValueError(
            f"expected NUMBER@RANKS, such as 0.2@64 for a fifth at 64 ranks (got '{text}')"
        )
    return float(found[1]), int(found[2])


def parse_counts(text: str) -> list[int]:
    """``'1,2,4'``; a ValueError for all but positive ints."""
    if re.fullmatch(r'[0-9]+(,[0-9]+)*', text) is None or 0 in map(int, text.split(',')):
        raise ValueError(f"expected numbers of ranks such as 1,2,4 (got '{text}')")
    return [int(entry) for entry in text.split(',')]


def parse_fans(text: str) -> list[int]:
    """``'15,10,-1'``: neighbours by hop; a ValueError for other forms."""
    if re.fullmatch(r'(-1|[0-9]+)(,(-1|[0-9]+))*', text) is None:
        raise ValueError(f"expected neighbours by hop such as 15,10,5, -1 for all (got '{text}')")
    return [int(entry) for entry in text.split(',')]


def _known(name: str, given: int | None, found: int | None, what: str) -> int:
    value = found if given is None else given
    if value is None:
        raise ValueError(
            f"expected '{name}', {what} (got none, and no partition folder that tells: its graph "
            "has features 'x' and integer labels 'y')"
        )
    return value


def _counts(statistics: Statistics) -> list[int]:
    known = [p.num_ranks for p in statistics.points]
    if statistics.folder is not None:
        known = [statistics.folder.num_parts]
    if known in ([], [1]):
        return [1]  # nothing to extrapolate from
    powers = [1 << i for i in range(15) if 1 << i <= 2 * max(known)]
    counts = powers if len(known) == 1 and max(known) <= 16 else powers[-4:]
    return sorted({*counts, *known})


def _print_least(planner: Planner, memory: int, base: int) -> int | None:
    statistics = planner.statistics
    most = min(_MOST_RANKS, statistics.num_nodes) if statistics.points else 1
    found = planner.least_ranks(lambda p: p.memory_bytes + base <= memory, most)
    if found is None:
        print(f'\n{most:,} ranks of {format_bytes(memory)} do not suffice')
        return None
    print(
        f'\nleast number of ranks with {format_bytes(memory)} each: {found.num_ranks:,}, of which '
        f'the largest needs {format_bytes(found.memory_bytes + base)}'
    )
    return found.num_ranks


def _parser() -> argparse.ArgumentParser:
    description = 'Predicts memory, traffic and time of training, before anything is loaded.'
    parser = Parser('pyg_sar.plan', description)
    add = parser.add_argument
    default = functools.partial(add, help='default: %(default)s')
    add('parts', nargs='?', metavar='PARTS', help='a folder of python -m pyg_sar.partition')
    default('--model', choices=sorted(_MODELS), default='sage')
    default('--hidden', type=_positive, default=256, metavar='H')
    default('--layers', type=_positive, default=3, metavar='L')
    for name, letter in (('in', 'F'), ('out', 'C')):
        known = "default: the folder's"
        add(f'--{name}', type=_positive, dest=f'{name}_channels', metavar=letter, help=known)
    of_gat = 'of gat, HIDDEN of all together; default: %(default)s'
    add('--heads', type=_positive, default=4, help=of_gat)
    default('--mode', choices=MODES, default='sequential')
    default('--norm', choices=('batch', 'none'), default='batch')
    default('--dropout', type=float, default=0.0, metavar='P')
    default('--optimizer', choices=sorted(_OPTIMIZERS), default='adam')
    default('--dtype', choices=('float32', 'float64'), default='float32')
    default('--bandwidth', type=float, default=1.25, metavar='GB/S')
    add('--ranks', metavar='R,R,...', help="default: powers of 2 about the folder's parts")
    fans = 'mini-batches of NeighborLoader, with so many neighbours by hop; -1 for all'
    add('--sampled', metavar='K,K,...', help=fans)
    of_part = 'seeds of a part in a batch; default: %(default)s'
    add('--batch-size', type=_positive, default=1024, metavar='B', help=of_part)
    add('--memory', metavar='SIZE', help='find the least number of ranks with so much, e.g. 64GB')
    add('--json', metavar='FILE', help='write the figures there, too')
    add('--no-time', dest='timed', action='store_false', help='skip timing this machine')
    by_hand = parser.add_argument_group('without PARTS').add_argument
    by_hand('--nodes', type=int, metavar='N', help='nodes of the graph')
    by_hand('--edges', type=int, metavar='E', help='directed edges of the graph')
    share = 'share of the edges cut at a number of ranks'
    by_hand('--cut', nargs='+', default=[], metavar='SHARE@RANKS', help=share)
    rows = 'halo rows of a rank over its own nodes, at a rank count of --cut'
    by_hand('--halo', nargs='+', default=[], metavar='ROWS@RANKS', help=rows)
    skew = 'edges and halo rows of the largest rank over the mean; default: %(default)s'
    by_hand('--imbalance', type=float, default=1.1, metavar='X', help=skew)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'expected a positive int (got {text!r})')
    return int(text)


if __name__ == '__main__':
    sys.exit(main())
