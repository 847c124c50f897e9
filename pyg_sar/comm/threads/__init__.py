"""Ranks as threads of one process."""

from pyg_sar.comm.threads.run import run_threads
