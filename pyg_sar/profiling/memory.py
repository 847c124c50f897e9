"""The high-water mark of memory over a stretch of time.

The process's resident size is what an operating system grants or refuses, and on Linux its
high-water mark can be set back, so it is exact for any stretch: nothing is sampled. It is the whole
process's: tensors, and whatever else lives meanwhile. On a GPU it is what torch has allocated.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

import torch


class HighWater(ABC):
    """Memory in use, and the most of it since a moment.

    Attributes:
        name: What is measured.
    """

    name: str

    @abstractmethod
    def reset(self) -> None:
        """Begins a stretch."""

    @abstractmethod
    def peak(self) -> int | None:
        """The most bytes in use since then; None if that is not known."""

    @abstractmethod
    def close(self) -> None:
        """Measures no more."""


class Resident(HighWater):
    """That of the process, on Linux; elsewhere it is not known."""

    name = 'resident'

    def __init__(self) -> None:
        self._files: tuple[int, int] | None = None
        try:
            status = os.open('/proc/self/status', os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            self._files = status, os.open('/proc/self/clear_refs', os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            os.close(status)

    def reset(self) -> None:
        """Sets the mark to what is resident now."""
        if self._files is not None:
            try:
                os.write(self._files[1], b'5')
            except OSError:
                self.close()

    def peak(self) -> int | None:
        """VmHWM."""
        if self._files is None:
            return None
        text = os.pread(self._files[0], 4096, 0)
        start = text.find(b'VmHWM:')
        return None if start < 0 else int(text[start + 6 :].split(None, 1)[0]) << 10

    def close(self) -> None:
        """Closes the files."""
        if self._files is not None:
            for file in self._files:
                os.close(file)
        self._files = None


class CudaAllocated(HighWater):
    """That of torch's allocator on one device."""

    name = 'CUDA allocated'

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def reset(self) -> None:
        """Sets the mark to what is allocated now."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        """``torch.cuda.max_memory_allocated``."""
        return torch.cuda.max_memory_allocated(self.device)

    def close(self) -> None:
        """Nothing is open."""


def high_water(device: torch.device) -> HighWater:
    """What measures memory for a model on `device`."""
    return CudaAllocated(device) if device.type == 'cuda' else Resident()
