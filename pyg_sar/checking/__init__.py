"""``check``: a user's own training step, on plain PyG and on three ranks."""

from pyg_sar.checking.check import check
