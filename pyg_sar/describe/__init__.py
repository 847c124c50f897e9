"""Looks into partition folders: what they hold, what they cost, whether they are whole."""

from pyg_sar.describe.verify import verify_partition
