"""What this process and its machine have of memory, in bytes."""

from __future__ import annotations

import os

import psutil
import torch


def resident() -> int:
    """In memory of this process."""
    return int(psutil.Process().memory_info().rss)


def resident_of_no_file() -> int:
    """In memory of this process, but for pages of files."""
    info = psutil.Process().memory_info()
    return int(info.rss - info.shared)


def available() -> int:
    """What the machine can still give."""
    return int(psutil.virtual_memory().available)


class HighWater:
    """The most memory in use since a moment.

    On a GPU it is what torch has allocated. Else it is the process's resident size, which is what
    an operating system grants or refuses. On Linux its high-water mark can be set back, so it is
    exact for any stretch of time: nothing is sampled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = 'CUDA allocated' if device.type == 'cuda' else 'resident'
        self._is_linux = os.access('/proc/self/clear_refs', os.W_OK)

    def reset(self) -> None:
        """Sets the mark to what is in use now."""
        if self._device.type == 'cuda':
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._is_linux:
            try:
                with open('/proc/self/clear_refs', 'wb', buffering=0) as file:
                    file.write(b'5')
            except OSError:
                self._is_linux = False

    def peak(self) -> int | None:
        """The most bytes in use since then; None if that is not known."""
        if self._device.type == 'cuda':
            return torch.cuda.max_memory_allocated(self._device)
        if not self._is_linux:
            return None
        with open('/proc/self/status', 'rb', buffering=0) as file:
            _, found, rest = file.read(4096).partition(b'VmHWM:')
        return int(rest.split(None, 1)[0]) << 10 if found else None
