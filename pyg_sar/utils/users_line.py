"""The line of the user's program that called this library."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from functools import cache
from types import FrameType

import torch
import torch_geometric

_OTHERS = (
    contextlib.__file__,
    threading.__file__,
    *(
        os.path.dirname(os.path.abspath(file)) + os.sep
        for file in (os.path.dirname(__file__), torch.__file__, torch_geometric.__file__)
    ),
)


@cache
def _is_users(file: str) -> bool:
    return not file.startswith((*_OTHERS, '<')) and os.sep in file


def users_line() -> tuple[str, int] | None:
    """The file and the line; None in a thread that the program has not started."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def warn(text: str) -> None:
    """Warns, and names that line."""
    file, line = users_line() or (__file__, 0)
    warnings.warn_explicit(text, UserWarning, file, line)
