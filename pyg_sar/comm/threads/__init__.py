"""Ranks as threads of one process."""

from pyg_sar.comm.threads.run import Around, run_around, run_threads
