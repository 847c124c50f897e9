"""Runs what a page of Markdown says: writes its programs, runs its commands, compares the output.

What is done with a block of code follows from its language and from the comment before it:

- ``<!-- file: train.py -->``: the block is that file.
- ``<!-- files: plain.py train.py -->``: a diff, and the files before and after it.
- ``<!-- setup: other.md graph.py -->``: a file of another page, which is run first.
- ``<!-- needs: torchmetrics -->``: without it the block and its commands are left out.
- python without a comment goes on where the last file ends, and is run so by the last command.
- bash: commands, one a line, run in order; those of several machines (``--nnodes``) at once.
- text: what the last commands print. Numbers with decimals may differ by 2 %, as bits depend on
  the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shlex
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from ports import free_port
from ranks import context

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r'((?:^<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_Process = tuple[BaseProcess, Path, bool]
_NUMBER = re.compile(r'\d+\.\d+')


@dataclass(frozen=True)
class Block:
    """A block of code, and what the comments before it say, by their first word."""

    language: str
    text: str
    said: dict[str, list[str]]


def blocks_of(text: str) -> list[Block]:
    """The blocks of code of a page, in order."""
    blocks = []
    for comments, language, code in _BLOCK.findall(text):
        notes = re.findall(r'<!-- (\w+):? ?([^\n]*?) -->', comments)
        blocks.append(Block(language, code, {word: rest.split() for word, rest in notes}))
    return blocks


@dataclass
class Reader:
    """Somebody who does in a folder what a page says."""

    folder: Path
    _last_file: str = ''
    _last_commands: list[str] = field(default_factory=list)
    _printed: str = ''

    def read(self, page: Path) -> None:
        """Does all that the page says."""
        can_run = True
        for block in blocks_of(page.read_text(encoding='utf-8')):
            if block.language != 'text' and (can_run or block.language != 'bash'):
                can_run = all(map(find_spec, block.said.get('needs', [])))
            if not can_run:
                continue
            if 'setup' in block.said:
                other, name = block.said['setup']
                self._set_up(page.parent / other, name)
            if block.language == 'bash':
                self._last_commands = commands_of(block.text)
                self._printed = self.run(self._last_commands)
            elif block.language == 'text':
                assert_same_output(self._printed, block.text)
            elif block.language in ('python', 'diff'):
                self._write(block)
            else:
                raise AssertionError(f'{page}: what is to be done with {block.language!r}?')

    def run(self, commands: list[str]) -> str:
        """Runs commands and returns what they print; those of several machines at once."""
        printed, started, port = '', [], free_port()
        for command in commands:
            started += start(launch_of(command), self.folder, port)
            if '--nnodes' in command and command != commands[-1]:
                continue
            for process, said, is_shown in started:
                process.join(timeout=600)
                errors = said.with_suffix('.err').read_text()
                assert process.exitcode == 0, f'{command}: {process.exitcode}\n{errors}'
                printed += said.read_text() if is_shown else ''
            started = []
        return printed

    def _set_up(self, page: Path, name: str) -> None:
        for block in blocks_of(page.read_text(encoding='utf-8')):
            if block.said.get('file') == [name]:
                (self.folder / name).write_text(block.text)
                self.run([f'python {name}'])
                return
        raise AssertionError(f'{page} has no {name}')

    def _write(self, block: Block) -> None:
        if block.language == 'diff':
            for name, sign in zip(block.said['files'], '-+', strict=True):
                (self.folder / name).write_text(one_side(block.text, sign))
                self._last_file = name
        elif 'file' in block.said:
            (self._last_file,) = block.said['file']
            (self.folder / self._last_file).write_text(block.text)
        else:
            with (self.folder / self._last_file).open('a') as file:
                file.write(block.text)
            self.run(self._last_commands)


def assert_same_output(printed: str, expected: str) -> None:
    """The same text; numbers with decimals may differ by 2 %."""
    assert _NUMBER.sub('#', printed) == _NUMBER.sub('#', expected), printed
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(expected), strict=True)
    for got, number in pairs:
        assert abs(float(got) - float(number)) <= 0.02 * float(number), printed


def one_side(diff: str, sign: str) -> str:
    """The text before ``(sign='-')`` or after ``('+')`` a diff."""
    lines = [line for line in diff.splitlines() if line[:1] in ('', ' ', sign)]
    return ''.join(f'{line[1:]}\n' for line in lines)


def commands_of(text: str) -> list[str]:
    """The commands of a block of bash, without comments."""
    lines = text.replace('\\\n', ' ').splitlines()
    return [command for line in lines if (command := line.split('#')[0].strip())]


@dataclass
class _Launch:
    """What a command starts: one process, or those of torchrun on one of several machines."""

    run: list[str]
    first_rank: int = 0
    num_local: int = 1
    world_size: int = 0
    shown: list[int] | None = None
    env: dict[str, str] = field(default_factory=dict)


def launch_of(command: str) -> _Launch:
    """What a command starts, with this machine for all others."""
    words = shlex.split(command)
    env = {}
    while '=' in words[0]:
        name, env[name] = words.pop(0).split('=', 1)
    program, *rest = words
    if program == 'python':
        return _Launch(rest, env=env)
    if program == 'pyg-sar':
        return _Launch(['-m', 'pyg_sar', *rest], env=env)
    assert program == 'torchrun', command
    parser = argparse.ArgumentParser(exit_on_error=False)
    for option, default in (('--nproc-per-node', 1), ('--nnodes', 1), ('--node-rank', 0)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument('--master-addr')
    parser.add_argument('--local-ranks-filter')
    parser.add_argument('run', nargs=argparse.REMAINDER)
    args = parser.parse_args(rest)
    count = args.nproc_per_node
    named = args.local_ranks_filter
    shown = None if named is None else [int(rank) for rank in named.split(',')]
    return _Launch(args.run, args.node_rank * count, count, args.nnodes * count, shown, env)


def start(launch: _Launch, folder: Path, port: int) -> list[_Process]:
    """Processes forked from one that has imported torch and PyG: seconds sooner than torchrun."""
    started = []
    for local in range(launch.num_local):
        env = {'OMP_NUM_THREADS': '1', **launch.env}
        if launch.world_size:
            env |= {'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(port), 'LOCAL_RANK': str(local)}
            env |= {'RANK': str(launch.first_rank + local), 'WORLD_SIZE': str(launch.world_size)}
            env |= {'TORCHELASTIC_RUN_ID': 'none', 'GLOO_SOCKET_IFNAME': 'lo'}
        said = folder / f'said-{env.get("RANK", "alone")}'
        process = context.Process(target=_program, args=(launch.run, folder, env, said))
        process.start()
        started.append((process, said, launch.shown is None or local in launch.shown))
    return started


def _program(run: list[str], folder: Path, env: dict[str, str], said: Path) -> None:
    """Is what ``python`` would be, in a process of its own."""
    for stream, path in ((1, said), (2, said.with_suffix('.err'))):
        with path.open('w') as file:
            os.dup2(file.fileno(), stream)
    os.environ.update(env)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    torch.set_num_threads(1)
    if run[0] == '-m':
        sys.argv = run[1:]
        runpy.run_module(run[1], run_name='__main__', alter_sys=True)
    else:
        sys.argv = run
        runpy.run_path(run[0], run_name='__main__')
