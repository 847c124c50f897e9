r"""One process plays all ranks in turn; the memory of those that wait is evicted to disk.

A rank touches its own rows and one remote block at a time, so ranks that are threads of one process
and take turns (:mod:`pyg_sar.comm.threads`) need the memory of one of them, if what the others hold
can be elsewhere. Nothing of a program changes: its tensors are emptied and filled again.

Two ways were tried.

=========================  ======================================  ================================
\                          emptying storages (here)                mapping a file over the address
=========================  ======================================  ================================
what brings memory back    the next operation that reads it        a page fault
a read error is            an OSError with the path                SIGBUS, the end of the process
disk reads                 what is asked, one call a tensor        pages at random, 3.3 times that
where it runs              any allocator; a GPU, too               Linux with glibc; no GPU
what must be known         who reads past torch (a few loops)      nothing
=========================  ======================================  ================================
"""

from pyg_sar.in_turns.figures import Figures
from pyg_sar.in_turns.run import InTurns, run_in_turns
