"""The command ``pyg-sar run train.py``: torchrun with a fast start, or all ranks in turn.

torch takes seconds to import, PyG more: here torch is imported for options of torchrun alone, and
PyG for ranks in turn.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyg_sar.launch.fast_start import allocator_library, fast_environment
from pyg_sar.utils.command_line import checked, parse_bytes

DESCRIPTION = """Runs a program as torchrun does, with the same options, and sets what makes it
fast: an allocator that keeps freed memory (where the extra 'fast' is installed), huge pages, and
the threads of a rank. Variables that you have set stay. Without options the program runs as one
process. With --in-turns one process plays all ranks, and what exceeds its memory goes to a disk."""

_IN_TURNS = ('memory', 'spill', 'parts')


def parser_options(words: Sequence[str]) -> dict[str, Any]:
    """What the parser of the command is made of: that of torchrun, where there are options."""
    if _has_options(words):
        from torch.distributed.run import get_args_parser

        return {'parents': [get_args_parser()], 'add_help': False, 'allow_abbrev': True}
    program = argparse.ArgumentParser(add_help=False)
    program.add_argument('training_script')
    program.add_argument('training_script_args', nargs=argparse.REMAINDER)
    return {'parents': [program]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that torchrun has not."""
    add = parser.add_argument_group('ranks in turn, in place of options of torchrun').add_argument
    add('--in-turns', action='store_true', help='play all ranks, one after another')
    memory = 'that large tensors of all ranks may take together, e.g. 4GB'
    add('--memory', type=checked(parse_bytes), metavar='SIZE', help=memory)
    add('--spill', metavar='DIR', help='a folder on a disk for what exceeds it')
    parts = 'the folder of a partition, with one part for every rank; default: parts'
    add('--parts', metavar='DIR', help=parts)


def run(arguments: argparse.Namespace, prog: str, words: Sequence[str]) -> int:
    """Becomes the program; as torchrun or with ``--in-turns`` returns when the ranks have ended."""
    if arguments.in_turns:
        return _run_in_turns(arguments)
    given = [name for name in _IN_TURNS if getattr(arguments, name) is not None]
    if given:
        raise ValueError(f'--{given[0]} is for ranks in turn: add --in-turns')
    num_ranks = 1
    if _has_options(words):
        num_ranks = _num_ranks(arguments)
    if not (_has_options(words) and (arguments.module or arguments.no_python)):
        _check_file(arguments.training_script)
    variables = fast_environment(num_ranks, os.environ)
    text = ' '.join(f'{name}={value}' for name, value in sorted(variables.items()))
    if allocator_library() is None:
        text += " (no allocator: pip install 'pyg_sar[fast]')"
    print(f'{prog}: {num_ranks} on this machine, {text}', file=sys.stderr, flush=True)
    os.environ.update(variables)
    if not _has_options(words):
        os.execv(sys.executable, [sys.executable, *words])
    from torch.distributed.run import main

    main(words)
    return 0


def _has_options(words: Sequence[str]) -> bool:
    return bool(words) and words[0].startswith('-')


def _num_ranks(arguments: argparse.Namespace) -> int:
    """How many ranks this machine shall have; ValueError for what torchrun meets with an assert."""
    from torch.distributed.run import determine_local_world_size

    num_ranks = determine_local_world_size(arguments.nproc_per_node)
    if not re.fullmatch(r'\d+(:\d+)?', arguments.nnodes):
        raise ValueError(f'--nnodes must be a number, or MIN:MAX (got {arguments.nnodes})')
    counts = [*map(int, arguments.nnodes.split(':'))]
    least, most = counts[0], counts[-1]
    meets = arguments.rdzv_backend != 'static' or arguments.rdzv_endpoint or arguments.standalone
    for is_right, rule, value in (
        (num_ranks >= 1, '--nproc-per-node must be at least 1', num_ranks),
        (1 <= least <= most, '--nnodes must be at least 1, and MIN at most MAX', arguments.nnodes),
        (most == 1 or not arguments.standalone, '--standalone is for --nnodes 1', arguments.nnodes),
        (
            most == 1 or meets or 0 <= arguments.node_rank < most,
            f'--node-rank must lie in [0, {most})',
            arguments.node_rank,
        ),
        (arguments.max_restarts >= 0, '--max-restarts must be at least 0', arguments.max_restarts),
        (
            arguments.monitor_interval > 0,
            '--monitor-interval must be above 0',
            arguments.monitor_interval,
        ),
    ):
        if not is_right:
            raise ValueError(f'{rule} (got {value})')
    return num_ranks


def _run_in_turns(arguments: argparse.Namespace) -> int:
    from torch.distributed.run import get_args_parser

    from pyg_sar.launch.in_turns.run import run_script

    script, words = arguments.training_script, arguments.training_script_args
    plain = vars(get_args_parser().parse_args([script, *words]))
    others = [name for name, value in plain.items() if getattr(arguments, name) != value]
    if others:
        option = others[0].replace('_', '-')
        raise ValueError(f'--in-turns takes no options of torchrun (got --{option})')
    if arguments.memory is None:
        raise ValueError('--in-turns needs --memory SIZE before the program')
    _check_file(script)
    sizes = {'memory': arguments.memory, 'spill': arguments.spill}
    print(run_script(Path(script), words, arguments.parts or 'parts', **sizes), file=sys.stderr)
    return 0


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise ValueError(f'no such file: {path}')
