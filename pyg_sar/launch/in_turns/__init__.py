"""One process plays all ranks in turn; the memory of those that wait is evicted to disk.

Ranks are threads that take turns (:mod:`pyg_sar.comm.threads`). Nothing of a program changes: its
tensors are emptied and filled again. To map a file over the address of a tensor instead would read
3.3 times as many pages, and a read error would end the process (SIGBUS).
"""
