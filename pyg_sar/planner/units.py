"""Rates and cuts as people write them, and bytes as they read them."""

from __future__ import annotations

import re

_NUMBER = r'[0-9]+\.?[0-9]*|\.[0-9]+'


def parse_share(text: str) -> tuple[float, int]:
    """``'0.2@64'``: a number at a number of ranks; a ValueError for other forms."""
    found = re.fullmatch(rf'({_NUMBER})@([0-9]+)', text)
    if found is None:
        raise ValueError(
            f"expected NUMBER@RANKS, such as 0.2@64 for a fifth at 64 ranks (got '{text}')"
        )
    return float(found[1]), int(found[2])


def parse_counts(text: str) -> list[int]:
    """``'1,2,4'``; a ValueError for all but positive ints."""
    if re.fullmatch(r'[0-9]+(,[0-9]+)*', text) is None or 0 in map(int, text.split(',')):
        raise ValueError(f"expected numbers of ranks such as 1,2,4 (got '{text}')")
    return [int(entry) for entry in text.split(',')]


def parse_fans(text: str) -> list[int]:
    """``'15,10,-1'``: neighbours by hop; a ValueError for other forms."""
    if re.fullmatch(r'(-1|[0-9]+)(,(-1|[0-9]+))*', text) is None:
        raise ValueError(f"expected neighbours by hop such as 15,10,5, -1 for all (got '{text}')")
    return [int(entry) for entry in text.split(',')]


def format_bytes(size: float) -> str:
    """Three to four digits and a decimal unit: ``'1,850 MB'``, ``'24.1 GB'``."""
    for unit, factor in (('TB', 1e12), ('GB', 1e9), ('MB', 1e6)):
        if size >= 10 * factor:
            value = size / factor
            return f'{value:,.1f} {unit}' if value < 100 else f'{value:,.0f} {unit}'
    return f'{size / 1e6:.2f} MB'
