"""Checkpoints of a training run: written atomically, read without running code from them."""

from pyg_sar.checkpoint.load import Checkpoint, load_checkpoint
from pyg_sar.checkpoint.save import save_checkpoint
