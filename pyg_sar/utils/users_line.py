"""The line of the user's program that called this library."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
import warnings
from functools import cache
from pathlib import Path

import torch
import torch_geometric

_LIBRARIES = Path(__file__).parent, Path(torch.__file__), Path(torch_geometric.__file__)
_OTHERS = (
    *(contextlib.__file__, threading.__file__, '<'),
    *(f'{path.absolute().parent}{os.sep}' for path in _LIBRARIES),
)


@cache
def _is_users(file: str) -> bool:
    return not file.startswith(_OTHERS) and os.sep in file


def users_line() -> tuple[str, int] | None:
    """The file and the line; None in a thread that the program has not started."""
    lines = ((f.f_code.co_filename, line) for f, line in traceback.walk_stack(sys._getframe()))
    return next((line for line in lines if _is_users(line[0])), None)


def warn(text: str) -> None:
    """Warns, and names that line."""
    file, line = users_line() or (__file__, 0)
    warnings.warn_explicit(text, UserWarning, file, line)
