r"""One process plays all ranks in turn; the memory of those that wait is evicted to disk.

A rank touches its own rows and one remote block at a time, so ranks that are threads of one process
and take turns (:mod:`pyg_sar.comm.threads`) need the memory of one of them, if what the others hold
can be elsewhere. Nothing of a program changes: its tensors are emptied and filled again.

To map a file over the address of a tensor, the other way, needs no knowledge of who reads past
torch. But a read error is then the end of the process (SIGBUS), pages are read at random, 3.3 times
as many, and it runs on Linux with glibc alone, and on no GPU.
"""
