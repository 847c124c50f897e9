"""The command line: ``pyg-sar run --nproc-per-node 4 train.py``, torchrun with a fast start.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from torch.distributed.run import determine_local_world_size, get_args_parser

from pyg_sar.commands.command_line import Parser
from pyg_sar.launch.fast_start import allocator_library, fast_environment

_DESCRIPTION = """Runs a program as torchrun does, with the same options, and sets what makes it
fast: an allocator that keeps freed memory (where the extra 'fast' is installed), huge pages, and
the threads of a rank. Variables that you have set stay. Without options the program runs as one
process. For ranks in turn use pyg-sar run-in-turns, which needs freed memory to be given back."""


def main(argv: Sequence[str] | None = None) -> int:
    """Becomes the program, or torchrun; returns the exit code of a wrong command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = Parser('pyg_sar.run', _DESCRIPTION)
    parser.usage = '%(prog)s [options of torchrun] SCRIPT ...'
    of_torchrun = get_args_parser()
    of_torchrun.error = parser.error  # type: ignore[method-assign]
    if not words or words[0] in ('-h', '--help'):
        parser.print_help()
        return 0 if words else 2
    num_ranks, command = 1, [sys.executable, *words]
    if words[0].startswith('-'):
        options = of_torchrun.parse_args(words)
        try:
            num_ranks = determine_local_world_size(options.nproc_per_node)
        except ValueError as error:
            parser.error(str(error))
        command = [sys.executable, '-m', 'torch.distributed.run', *words]
    elif not os.path.exists(words[0]):
        parser.error(f'no such file: {words[0]}')
    variables = fast_environment(num_ranks, os.environ)
    text = ' '.join(f'{name}={value}' for name, value in sorted(variables.items()))
    if allocator_library() is None:
        text += " (no allocator: pip install 'pyg_sar[fast]')"
    print(f'pyg-sar run: {num_ranks} on this machine, {text}', file=sys.stderr, flush=True)
    os.execve(sys.executable, command, {**os.environ, **variables})


if __name__ == '__main__':
    sys.exit(main())
