"""The command ``pyg-sar``, also ``python -m pyg_sar``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pyg_sar.utils import __version__
from pyg_sar.utils.command_line import Parser, run_command

_COMMANDS = {
    'partition': ('pyg_sar.partition.__main__', 'cut a graph into one part for every rank'),
    'run': ('pyg_sar.launch.run', 'start a program on ranks, or as all ranks in turn'),
    'info': ('pyg_sar.launch.info', 'what a folder of parts holds, or what is installed'),
}
"""By name, the module of a command and what it does."""

_PROG = 'python -m pyg_sar' if __name__ == '__main__' else 'pyg-sar'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command of the first word; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or ['--help']
    description = 'Exact distributed training of PyTorch Geometric models on partitioned graphs.'
    parser = Parser(_PROG, description=description)
    parser.add_argument('--version', action='version', version=f'pyg_sar {__version__}')
    commands = parser.add_subparsers(metavar='COMMAND', required=True)
    for name, (path, text) in _COMMANDS.items():
        if name != words[0]:
            commands.add_parser(name, help=text)
            continue
        module = import_module(path)  # of this command alone
        options: dict[str, Any] = getattr(module, 'parser_options', lambda words: {})(words[1:])
        own = commands.add_parser(name, description=module.DESCRIPTION, **options)
        module.add_arguments(own)
        own.set_defaults(run=lambda args: module.run(args, own.prog, words[1:]))  # noqa: B023
    return run_command(parser, lambda arguments: int(arguments.run(arguments)), words)


if __name__ == '__main__':
    sys.exit(main())
