"""Counts where a program waits for its device: a benchmark and a test ask for it."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


@contextmanager
def device_waits() -> Iterator[Counter[str]]:
    """Counts them by file and line of pyg_sar, or of what calls it."""
    found: Counter[str] = Counter()

    def note(message: Any, *_: Any) -> None:
        if 'called a synchronizing' in str(message):
            frames = [f for f in traceback.extract_stack() if 'site-packages' not in f.filename]
            frames = [f for f in frames if '/rows/patche' not in f.filename]  # what called these
            inner = [f for f in frames if '/pyg_sar/' in f.filename] or frames[:-1]
            found[f'{"/".join(Path(inner[-1].filename).parts[-2:])}:{inner[-1].lineno}'] += 1

    with warnings.catch_warnings():
        warnings.simplefilter('always')
        warnings.showwarning = note
        torch.cuda.set_sync_debug_mode('warn')
        try:
            yield found
        finally:
            torch.cuda.set_sync_debug_mode('default')
