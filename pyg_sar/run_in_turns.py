"""The command line: ``python -m pyg_sar.run_in_turns --memory 4GB --spill /scratch train.py``.

Nothing imports this module: runpy warns when the package has already imported what it runs, and
the function of this name would be hidden.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from pyg_sar.commands.command_line import Parser, checked, positive
from pyg_sar.launch.in_turns.run import check_options, run_in_turns
from pyg_sar.shard.format import META_FILE
from pyg_sar.utils.meter import memory_size


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.memory is None:
        parser.error('--memory SIZE is needed, and all options of this command stand before SCRIPT')
    for path in (args.script, args.parts / META_FILE, args.spill):
        if path is not None and not path.exists():
            parser.error(f'no such file: {path}')
    try:
        check_options(args.host_memory, args.spill, args.reserve)
    except ValueError as error:
        parser.error(str(error))
    sys.argv[:] = [str(args.script), *args.arguments]
    sys.path.insert(0, str(args.script.parent.resolve()))

    def run() -> None:
        try:
            runpy.run_path(str(args.script), run_name='__main__')
        except SystemExit as end:
            if end.code not in (None, 0):
                raise

    names = ('memory', 'spill', 'host_memory', 'num_ranks', 'reserve')
    options = {name: getattr(args, name) for name in names}
    main_module = sys.modules['__main__']
    try:
        figures = run_in_turns(run, args.parts, **options).figures
    finally:
        sys.modules['__main__'] = main_module  # ranks put it back in any order
    print(figures, file=sys.stderr)
    return 0


def _parser() -> Parser:
    description = 'Runs a program written for torchrun as all ranks, in turn, in one process.'
    parser, size = Parser('pyg_sar.run_in_turns', description), checked(memory_size)
    add = parser.add_argument
    add('script', type=Path, metavar='SCRIPT', help='the program')
    rest = 'what the program gets: all after SCRIPT'
    add('arguments', nargs=argparse.REMAINDER, metavar='...', help=rest)
    memory = 'that large tensors may take together, on a GPU and on the host, e.g. 4GB'
    add('--memory', type=size, metavar='SIZE', help=memory)
    spill = 'a folder on a disk for what is evicted; with a GPU, if the host is not to take all'
    add('--spill', type=Path, metavar='FOLDER', help=spill)
    host = 'with a GPU, of memory of the host, if not as much as --memory'
    add('--host-memory', type=size, metavar='SIZE', help=host)
    parts = 'of python -m pyg_sar.partition, with one part for every rank; default: %(default)s'
    add('--parts', type=Path, default=Path('parts'), metavar='FOLDER', help=parts)
    ranks = 'if not one for every part'
    add('--num-ranks', type=checked(positive), metavar='P', help=ranks)
    reserve = 'of the disk that is taken at once'
    add('--reserve', type=size, default=0, metavar='SIZE', help=reserve)
    return parser


if __name__ == '__main__':
    sys.exit(main())
