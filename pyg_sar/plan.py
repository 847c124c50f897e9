"""The command line: ``python -m pyg_sar.plan PARTS --model sage --hidden 256 --layers 3``.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from pyg_sar.planner import Planner, Statistics, by_hand, read_statistics
from pyg_sar.planner.fit import least_ranks
from pyg_sar.planner.models import MODELS, make_model
from pyg_sar.planner.prediction import MODES, Prediction
from pyg_sar.planner.process import base_bytes
from pyg_sar.planner.rehearsal import Job
from pyg_sar.planner.report import NOTE, as_dict, rank_table, table
from pyg_sar.planner.units import format_bytes, parse_bytes, parse_counts, parse_share

_DTYPES = ('float32', 'float64')
_OPTIMIZERS = {'adam': torch.optim.Adam, 'sgd': torch.optim.SGD}
_MOST_RANKS = 1 << 14
_MOST_LISTED = 64


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        return _run(args)
    except (ValueError, OSError) as error:
        print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('error: interrupted', file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    base = base_bytes()
    memory = None if args.memory is None else parse_bytes(args.memory)
    counts = None if args.ranks is None else parse_counts(args.ranks)
    statistics = _statistics(args)
    if args.bandwidth <= 0:
        raise ValueError(f"'--bandwidth' must be positive (got {args.bandwidth})")
    planner = Planner(
        statistics, _job(args, statistics), bandwidth=args.bandwidth * 1e9, timed=args.timed
    )
    predict = functools.cache(planner.predict)
    predictions = [predict(n) for n in counts or _counts(statistics)]
    print(_headline(args, statistics))
    report = {'base_bytes': base, 'predictions': [as_dict(p, base) for p in predictions]}
    folder = statistics.folder
    if folder is not None and folder.num_parts <= _MOST_LISTED:
        as_cut = [p for p in predictions if p.num_ranks == folder.num_parts]
        for prediction in as_cut:
            print(f'\n{folder.num_parts} ranks, each of them\n{rank_table(prediction)}')
    print(f'\nlargest rank, for each number of ranks\n{table(predictions, base)}')
    if memory is not None:
        report['least_ranks'] = _print_least(predict, memory, base, statistics)
    print(f'\n{_assumptions(args, base)}\n{NOTE}')
    if args.json is not None:
        Path(args.json).write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')
    return 0


def _statistics(args: argparse.Namespace) -> Statistics:
    given = [args.nodes, args.edges]
    others = [*given, *args.cut, *args.halo]
    if args.parts is not None:
        if any(value is not None for value in others):
            raise ValueError("expected a partition folder or '--nodes' and '--edges' (got both)")
        return read_statistics(args.parts)
    if None in given:
        raise ValueError("expected a partition folder, or '--nodes' and '--edges' (got neither)")
    cut, halo = ([parse_share(text) for text in texts] for texts in (args.cut, args.halo))
    return by_hand(args.nodes, args.edges, cut, halo, imbalance=args.imbalance)


def _job(args: argparse.Namespace, statistics: Statistics) -> Job:
    width = _known('--in', args.in_channels, statistics.in_channels)
    classes = _known('--out', args.out_channels, statistics.num_classes)
    model = make_model(
        args.model,
        width,
        args.hidden,
        args.layers,
        classes,
        heads=args.heads,
        norm={'batch': 'batch_norm', 'none': None}[args.norm],
        dropout=args.dropout,
    )
    make_optimizer = functools.partial(_OPTIMIZERS[args.optimizer], lr=0.01)
    return Job(
        model,
        width,
        args.mode,
        lambda m, data: m(data.x, data.edge_index),
        make_optimizer,
        getattr(torch, args.dtype),
    )


def _known(name: str, given: int | None, found: int | None) -> int:
    value = found if given is None else given
    if value is None:
        raise ValueError(f"expected '{name}', which the statistics do not tell (got none)")
    return value


def _counts(statistics: Statistics) -> list[int]:
    known = [p.num_ranks for p in statistics.points]
    if statistics.folder is not None:
        known = [statistics.folder.num_parts]
    if not known:
        return [1]
    powers = [1 << i for i in range(15) if 1 << i <= 2 * max(known)]
    counts = powers if len(known) == 1 and max(known) <= 16 else powers[-4:]
    if statistics.folder is not None and known == [1]:
        counts = [1]  # nothing to extrapolate from
    return sorted({*counts, *known})


def _print_least(
    predict: functools._lru_cache_wrapper[Prediction],
    memory: int,
    base: int,
    statistics: Statistics,
) -> int | None:
    most = min(_MOST_RANKS, statistics.num_nodes) if statistics.points else 1
    found = least_ranks(predict, lambda p: p.memory_bytes + base <= memory, most)
    if found is None:
        print(f'\n{most:,} ranks of {format_bytes(memory)} do not suffice')
        return None
    print(
        f'\nleast number of ranks with {format_bytes(memory)} each: {found.num_ranks:,}, of which '
        f'the largest needs {format_bytes(found.memory_bytes + base)}'
    )
    return found.num_ranks


def _headline(args: argparse.Namespace, statistics: Statistics) -> str:
    return (
        f'{statistics.num_nodes:,} nodes, {statistics.num_edges:,} directed edges; {args.model}, '
        f'{args.layers} layers, hidden {args.hidden}, {args.mode}, {args.dtype}, {args.optimizer}'
    )


def _assumptions(args: argparse.Namespace, base: int) -> str:
    return (
        f'Assumed: {args.bandwidth:g} GB/s received by each rank, {torch.get_num_threads()} '
        f'threads per rank as here, {format_bytes(base)} for Python and its libraries.'
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog='python -m pyg_sar.plan',
        description='Predicts memory, traffic and time of training, before anything is loaded.',
        allow_abbrev=False,
    )
    add = parser.add_argument
    add('parts', nargs='?', metavar='PARTS', help='a folder of python -m pyg_sar.partition')
    add('--model', choices=sorted(MODELS), default='sage', help='default: %(default)s')
    add('--hidden', type=int, default=256, metavar='H', help='default: %(default)s')
    add('--layers', type=int, default=3, metavar='L', help='default: %(default)s')
    add('--in', type=int, dest='in_channels', metavar='F', help="default: the folder's")
    add('--out', type=int, dest='out_channels', metavar='C', help="default: the folder's")
    add('--heads', type=int, default=4, help='of gat, HIDDEN of all together; default: %(default)s')
    add('--mode', choices=MODES, default='sequential', help='default: %(default)s')
    add('--norm', choices=('batch', 'none'), default='batch', help='default: %(default)s')
    add('--dropout', type=float, default=0.0, metavar='P', help='default: %(default)s')
    add('--optimizer', choices=sorted(_OPTIMIZERS), default='adam', help='default: %(default)s')
    add('--dtype', choices=_DTYPES, default='float32', help='default: %(default)s')
    add('--bandwidth', type=float, default=1.25, metavar='GB/S', help='default: %(default)s')
    add('--ranks', metavar='R,R,...', help="default: powers of 2 about the folder's parts")
    add('--memory', metavar='SIZE', help='find the least number of ranks with so much, e.g. 64GB')
    add('--json', metavar='FILE', help='write the figures there, too')
    add('--no-time', dest='timed', action='store_false', help='skip timing this machine')
    add('--nodes', type=int, metavar='N', help='without PARTS: nodes of the graph')
    add('--edges', type=int, metavar='E', help='without PARTS: directed edges of the graph')
    add(
        '--cut',
        nargs='+',
        default=[],
        metavar='SHARE@RANKS',
        help='without PARTS: share of the edges cut at a number of ranks',
    )
    add(
        '--halo',
        nargs='+',
        default=[],
        metavar='ROWS@RANKS',
        help='without PARTS: halo rows of a rank over its own nodes, at a rank count of --cut',
    )
    add(
        '--imbalance',
        type=float,
        default=1.1,
        metavar='X',
        help='without PARTS: edges and halo rows of the largest rank over the mean; '
        'default: %(default)s',
    )
    return parser


class _Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and has no usage before it."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(2, f'error: {message}\n')


if __name__ == '__main__':
    sys.exit(main())
