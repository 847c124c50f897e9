"""What commands share: a parser, errors in one line, sizes, progress and tables."""

from __future__ import annotations

import argparse
import os
import re
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

T = TypeVar('T')

IS_COMMAND = sys.argv[:1] == ['-m'] or Path(*sys.argv[:1]).stem == 'pyg-sar'
"""Whether this process began as ``pyg-sar`` or a ``python -m``, and not as a user's program."""

if IS_COMMAND:
    # Of PyG, when it is imported by a command: nothing that its user could change.
    warnings.filterwarnings('ignore', '`torch.jit.script` is deprecated', FutureWarning)

users_files: set[str] = set()
"""Programs of the user, of whose errors the traceback is shown."""

_SECONDS = 10.0
"""Between the lines of steps in a log file."""


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and has no usage before it."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{'allow_abbrev': False, **options})

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        self.exit(2, f'error: {printable(message)}\n')


def run_command(
    parser: Parser, run: Callable[[argparse.Namespace], int], words: Sequence[str]
) -> int:
    """Parses and runs; returns the exit code: 2 after an error, 130 after an interrupt."""
    arguments = parser.parse_args(words)
    try:
        return run(arguments)
    except (ValueError, OSError) as error:
        frames = traceback.walk_tb(error.__traceback__)
        if any(frame.f_code.co_filename in users_files for frame, _ in frames):
            raise
        print(f'error: {printable(" ".join(str(error).split()))}', file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(f'error: {interrupt or "interrupted"}', file=sys.stderr)
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


_SIZE = r'[0-9]+\.?[0-9]*|\.[0-9]+'
_POWERS = {'': 0, 'K': 1, 'M': 2, 'G': 3, 'T': 4}


def parse_bytes(text: str) -> int:
    """``'64GB'``, ``'64 GiB'`` or many plain bytes; a ValueError for all but positive sizes."""
    match = re.fullmatch(rf'\s*({_SIZE})\s*(?:([KMGT])(i?))?B?\s*', text)
    unit = (1024 if match[3] else 1000) ** _POWERS[match[2] or ''] if match else 0
    size = round(float(match[1]) * unit) if match else 0
    if size < 1:
        raise ValueError(f"expected a size such as 64GB or 500MiB (got '{text}')")
    if size < 10**6 and text.strip().isdigit():
        raise ValueError(f'expected a size with a unit (got {text} bytes? say {text}GB)')
    return size


class Progress:
    """Says on stderr what runs, for a ``with`` statement.

    In a terminal one line changes. Elsewhere, as in a log file, a phase is a line; steps of one
    phase are a line every ten seconds. Ranks of torchrun other than 0 say nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet or os.environ.get('RANK', '0') != '0'
        self._is_terminal = sys.stderr.isatty()
        self._start = self._last = time.monotonic()
        self._later = threading.Timer(0.0, lambda: None)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._later.cancel()
        if self._is_terminal:
            self._print('\r\x1b[K', end='')

    def phase(self, text: str, *, delay: float = 0.0) -> None:
        """What begins now, such as ``'METIS'``; said after a delay, if it lasts as long."""
        self._later.cancel()
        if delay > 0:
            self._later = threading.Timer(delay, self.phase, [text])
            self._later.daemon = True
            self._later.start()
            return
        self._last = time.monotonic()
        text = f'{text} (after {self._last - self._start:.0f} s)'
        if self._is_terminal:
            self._print(f'\r\x1b[K{text}', end='')
        else:
            self._print(text)

    def steps(self, name: str, total: int) -> Callable[[], None]:
        """Says ``'part 1/8'``; gives what to call after every step, which says the next one."""
        self.phase(f'{name} 1/{total}')
        numbers = iter(range(2, total + 1))

        def is_done() -> None:
            number = next(numbers, None)
            is_due = self._is_terminal or time.monotonic() - self._last >= _SECONDS
            if number is not None and is_due:
                self.phase(f'{name} {number}/{total}')

        return is_done

    def share(self, name: str) -> Callable[[float], None]:
        """Gives what to call with how much of a phase is done, from 0 to 1, which says it."""

        def is_done(share: float) -> None:
            if time.monotonic() - self._last >= (0.5 if self._is_terminal else _SECONDS):
                self.phase(f'{name} {share:.0%}')

        return is_done

    def _print(self, text: str, end: str = '\n') -> None:
        if not self._quiet:
            print(text, end=end, file=sys.stderr, flush=True)


def text_table(rows: Iterable[Iterable[str]], num_left: int = 0) -> str:
    """A table of lines, its first `num_left` columns flush left and the others right."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ['<' if i < num_left else '>' for i in range(len(widths))]
    form = '  '.join(f'{{:{s}{w}}}' for s, w in zip(sides, widths, strict=True))
    return '\n'.join(form.format(*row).rstrip() for row in rows)
