"""What all command-line programs share: options, errors in one line, progress and tables.

A program is a :class:`Parser` of its options and a function that runs with them;
:func:`run_command` puts the two together.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from tqdm import tqdm

T = TypeVar('T')

users_files: set[str] = set()
"""Those with a user's model or function, of which an error is told with its traceback."""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and has no usage before it."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f'python -m {name}', description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        self.exit(2, f'error: {printable(message)}\n')


def run_command(
    parser: Parser,
    run: Callable[[argparse.Namespace], int],
    argv: Sequence[str] | None = None,
    *,
    interrupted: str = 'interrupted',
) -> int:
    """Parses and runs; returns the exit code: 2 after an error, 130 after an interrupt."""
    args = parser.parse_args(argv)
    try:
        return run(args)
    except (ValueError, OSError) as error:
        frames = traceback.walk_tb(error.__traceback__)
        if any(frame.f_code.co_filename in users_files for frame, _ in frames):
            raise
        print(f'error: {printable(" ".join(str(error).split()))}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'error: {interrupted}', file=sys.stderr)
        return 130


def printable(text: str) -> str:
    """A text of a stranger without what a terminal would obey: escapes as Python writes them."""
    return ''.join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def checked(check: Callable[[str], T]) -> Callable[[str], T]:
    """The type of an option whose value is ``check(text)``, and whose error is its ValueError."""

    def convert(text: str) -> T:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def positive(text: str) -> int:
    """The number of a text, at least 1; a ValueError for other texts."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f'expected a positive int (got {text!r})')
    return int(text)


def progress_bar(name: str, total: int, *, quiet: bool = False, delay: float = 0.5) -> Any:
    """Progress on stderr, for a ``with`` statement: ``bar.update()`` after every step.

    In a terminal or a notebook it is a bar, which appears after `delay` seconds. Elsewhere, as in a
    log file, it is a line for every 10 %. Ranks of torchrun other than 0 show nothing.
    """
    quiet = quiet or os.environ.get('RANK', '0') != '0'
    if quiet or sys.stderr.isatty() or 'ipykernel' in sys.modules:
        return tqdm(desc=name, total=total, disable=quiet, delay=delay)
    return _Lines(name, total, delay)


class _Lines:
    def __init__(self, name: str, total: int, delay: float) -> None:
        self._name, self._total, self._delay, self._done = name, total, delay, 0
        self._start = time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, count: int = 1) -> None:
        before = 10 * self._done // self._total
        self._done += count
        now, seconds = 10 * self._done // self._total, time.monotonic() - self._start
        if now > before and seconds >= self._delay:
            print(f'{self._name}: {now}0 % after {seconds:.0f} s', file=sys.stderr, flush=True)


def text_table(rows: Iterable[Iterable[str]], num_left: int = 0) -> str:
    """A table of lines, its first `num_left` columns flush left and the others right."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ['<' if i < num_left else '>' for i in range(len(widths))]
    form = '  '.join(f'{{:{s}{w}}}' for s, w in zip(sides, widths, strict=True))
    return '\n'.join(form.format(*row).rstrip() for row in rows)
