"""Runs a user's own program twice, whole and in two parts, before it trains."""

from pyg_sar.checking.first_forward import check_first_forward
