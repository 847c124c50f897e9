"""The command line: ``python -m pyg_sar.plan PARTS train.py:make_model --memory 16GB``.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyg_sar.commands.command_line import Parser, checked, run_command, text_table
from pyg_sar.commands.users_model import FORWARD, MODEL, load_model, load_named, run_model
from pyg_sar.planner.prediction import Prediction, plan
from pyg_sar.utils.meter import bytes_text, memory_size

MODES = 'sequential', 'sequential_no_remat', 'one_shot'
_NOTE = (
    'Each column tells its largest rank. Memory is that of a process at its peak, with {base} for\n'
    'Python and its libraries; the rest of it was within 12 % of what was measured on CPUs.'
)
_CPU_NOTE = (
    'CPU seconds are those of this machine now, on one thread, measured in the rehearsal: no wall\n'
    'clock. Exchange and waiting are not in them, and threads share them.'
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    return run_command(_parser(), _run, argv)


def _run(args: argparse.Namespace) -> int:
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # just after the imports
    forward = run_model if args.forward is None else load_named(args.forward)
    model = load_model(args.model)
    predictions = plan(
        args.parts, model, ranks=args.ranks, mode=args.mode, forward=forward, timed=args.timed
    )
    figures = [{**asdict(p), 'memory_bytes': p.memory_bytes + base} for p in predictions]
    report: dict[str, Any] = {'base_bytes': base, 'predictions': figures}
    texts = [f'{type(model).__name__}, {args.mode}', _table(predictions, base)]
    if args.memory is not None:
        fitting = [p.num_ranks for p in predictions if p.memory_bytes + base <= args.memory]
        report['least_ranks'] = min(fitting, default=None)
        least = min(fitting, default='none of these; cut the graph into more parts')
        texts.append(f'least number of ranks with {bytes_text(args.memory)} each: {least}')
    texts.append(_NOTE.format(base=bytes_text(base)))
    print('\n\n'.join([*texts, _CPU_NOTE] if args.timed else texts))
    if args.json is not None:
        Path(args.json).write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')
    return 0


def _table(predictions: Sequence[Prediction], base: int) -> str:
    """One row for every number of ranks, of its largest rank in each column."""
    rows = [['ranks', 'memory', 'shard', 'rows', 'halo rows', 'received/epoch', 'CPU s/epoch']]
    for p in predictions:
        memory, shard = bytes_text(p.memory_bytes + base), bytes_text(p.shard_bytes)
        counts = f'{p.num_nodes:,}', f'{p.halo_rows:,}', bytes_text(p.bytes_per_epoch)
        seconds = '-' if p.cpu_seconds is None else f'{p.cpu_seconds:,.3g}'
        rows.append([f'{p.num_ranks:,}', memory, shard, *counts, seconds])
    return text_table(rows)


def _ranks(text: str) -> list[int]:
    if re.fullmatch(r'[1-9][0-9]*(,[1-9][0-9]*)*', text) is None:
        raise ValueError(f"expected numbers of ranks such as 1,2,4 (got '{text}')")
    return [int(entry) for entry in text.split(',')]


def _parser() -> Parser:
    description = 'Predicts memory, traffic and CPU time of training, before anything is loaded.'
    parser = Parser('pyg_sar.plan', description)
    add = parser.add_argument
    add('parts', metavar='PARTS', help='a folder of python -m pyg_sar.partition')
    add('model', metavar='MODEL', help=MODEL)
    add('--forward', metavar='FUNCTION', help=FORWARD)
    add('--mode', choices=MODES, default='sequential', help='default: %(default)s')
    add('--ranks', type=checked(_ranks), metavar='R,R,...', help='default: all that are possible')
    memory = 'find the least number of ranks with so much, e.g. 64GB'
    add('--memory', type=checked(memory_size), metavar='SIZE', help=memory)
    add('--json', metavar='FILE', help='write the figures there, too')
    add('--no-time', dest='timed', action='store_false', help='skip measuring CPU seconds')
    return parser


if __name__ == '__main__':
    sys.exit(main())
