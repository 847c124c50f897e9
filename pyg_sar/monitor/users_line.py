"""The line of the user's program that called this library."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from traceback import walk_stack

import torch
import torch_geometric

_OTHERS = (
    contextlib.__file__,
    *(
        os.path.dirname(os.path.abspath(file)) + os.sep
        for file in (os.path.dirname(__file__), torch.__file__, torch_geometric.__file__)
    ),
)


def users_line() -> tuple[str, int] | None:
    """The file and the line; None in a thread that the program has not started."""
    for frame, line in walk_stack(sys._getframe()):
        file = frame.f_code.co_filename
        if not file.startswith((*_OTHERS, '<')) and os.sep in file and 'threading' not in file:
            return file, line
    return None


def warn(text: str) -> None:
    """Warns, and names that line."""
    file, line = users_line() or (__file__, 0)
    warnings.warn_explicit(text, UserWarning, file, line)
