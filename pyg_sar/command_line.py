"""What a terminal shows of all programs alike: options, errors in one line, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and has no usage before it."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(f'python -m {name}', description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        self.exit(2, f'error: {message}\n')


def run(program: Callable[[], int], *, interrupted: str = 'interrupted') -> int:
    """Runs a program; returns its exit code: 2 after an error, 130 after an interrupt."""
    try:
        return program()
    except (ValueError, OSError) as error:
        print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'error: {interrupted}', file=sys.stderr)
        return 130


def aligned(rows: Iterable[Iterable[str]], num_left: int = 0) -> list[str]:
    """The lines of a table, its first `num_left` columns flush left and the others right."""
    rows = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ['<' if i < num_left else '>' for i in range(len(widths))]
    form = '  '.join(f'{{:{s}{w}}}' for s, w in zip(sides, widths, strict=True))
    return [form.format(*row).rstrip() for row in rows]
