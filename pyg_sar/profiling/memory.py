"""The high-water mark of memory over a stretch of time.

The process's resident size is what an operating system grants or refuses, and on Linux its
high-water mark can be set back, so it is exact for any stretch: nothing is sampled. It is the whole
process's: tensors, and whatever else lives meanwhile. On a GPU it is what torch has allocated.
"""

from __future__ import annotations

import os

import torch


class HighWater:
    """The most memory in use since a moment.

    Attributes:
        name: What is measured for a model on `device`.
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
