"""Bytes that a run in turns has moved between memory and disk."""

from __future__ import annotations

from dataclasses import dataclass

from pyg_sar.utils.log import bytes_text


@dataclass
class Figures:
    """Bytes that were moved so far.

    Attributes:
        evictions: How often the memory of a tensor was taken away.
        written: Bytes written to the disk.
        read: Bytes read from it.
        read_of_others: Bytes of it that another rank than the one that reads has made: rows of
            other parts, with those between them that lie in the same pages.
        peak: Bytes of large tensors in memory of the host, at most; with what waits there for GPUs.
        device_peak: Bytes of large tensors on one GPU, at most.
        to_host: Bytes that were copied from GPUs to wait.
        to_device: Bytes that were copied back.
        largest: Bytes of the largest tensor.
        disk: Bytes of the file.
    """

    evictions: int = 0
    written: int = 0
    read: int = 0
    read_of_others: int = 0
    peak: int = 0
    device_peak: int = 0
    to_host: int = 0
    to_device: int = 0
    largest: int = 0
    disk: int = 0

    def __str__(self) -> str:
        """The figures in words."""
        phrases = [f'{bytes_text(self.peak)} of large tensors at most']
        if self.device_peak:
            phrases = [f'{bytes_text(self.device_peak)} of large tensors on a GPU at most']
            phrases.append(f'{bytes_text(self.peak)} in memory of the host')
        phrases += [f'{bytes_text(self.written)} written', f'{bytes_text(self.read)} read']
        if self.read_of_others:
            phrases.append(f'of that {bytes_text(self.read_of_others)} of other parts')
        return ', '.join(phrases)
