"""Numbers as people read them."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """``'512 B'``, ``'4.5 KiB'``, ``'1.2 GiB'``."""
    for unit in ('B', 'KiB', 'MiB', 'GiB'):
        if num_bytes < 1024:
            return f'{num_bytes:.0f} B' if unit == 'B' else f'{num_bytes:.1f} {unit}'
        num_bytes /= 1024
    return f'{num_bytes:.1f} TiB'
