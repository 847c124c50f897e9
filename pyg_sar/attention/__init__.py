"""Attention of every row to all rows of all ranks."""

from pyg_sar.attention.ring import attend_to_all
