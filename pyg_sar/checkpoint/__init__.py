"""Training runs and their results on disk, written atomically, read without running code."""

from pyg_sar.checkpoint.load import Checkpoint, load_checkpoint
from pyg_sar.checkpoint.row_files import load_rows, save_rows
from pyg_sar.checkpoint.save import save_checkpoint
