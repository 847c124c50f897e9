"""Memory of this process and its machine, in bytes."""

from __future__ import annotations

import os
import re

import psutil
import torch


def resident_of_no_file() -> int:
    """Resident memory of this process, without pages of files."""
    info = psutil.Process().memory_info()
    return int(info.rss - info.shared)


def available() -> int:
    """Memory that the machine still has available."""
    return int(psutil.virtual_memory().available)


class HighWater:
    """The most memory in use since a moment.

    On a GPU it is the memory that torch has allocated; on a CPU it is the process's resident
    memory. Linux keeps the high-water mark and can reset it, so it is exact: nothing is sampled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.name = 'CUDA allocated' if device.type == 'cuda' else 'resident'
        self._is_linux = os.access('/proc/self/clear_refs', os.W_OK)

    def reset(self) -> None:
        """Sets the mark to the memory in use now."""
        if self._device.type == 'cuda':
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._is_linux:
            try:
                with open('/proc/self/clear_refs', 'wb', buffering=0) as file:
                    file.write(b'5')
            except OSError:
                self._is_linux = False

    def peak(self) -> int | None:
        """The most bytes in use since the reset; None if that is not known."""
        if self._device.type == 'cuda':
            return torch.cuda.max_memory_allocated(self._device)
        if not self._is_linux:
            return None
        with open('/proc/self/status', 'rb', buffering=0) as file:
            kib = re.search(rb'VmHWM:\s*(\d+)', file.read(4096))
        return int(kib[1]) << 10 if kib else None
