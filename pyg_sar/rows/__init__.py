"""Rows that know whose they are: data of a cut graph, and what may be computed with them."""

from pyg_sar.rows import rules

__all__ = ['rules']
