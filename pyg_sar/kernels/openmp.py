"""Sets, before torch is imported, huge pages and how long its threads spin for each other.

torch computes with the OpenMP of GCC. A thread that waits for the others spins for some
milliseconds before it sleeps. Where other programs run, too, it uses up its share of a core by
that, and the thread that it waits for does not run. GAT has a thousand such waits in an epoch.
GOMP_SPINCOUNT says how long a thread spins, and is read when torch is imported. So pyg_sar sets it
when it is imported, in time if that is before torch.

Measured, epochs of GAT on two cores with two threads: beside two busy programs that may run on
either core, as a multiple of alone; and alone, as a multiple of alone with the default. Pairs of
epochs alone differ by up to a fifth either way:

=======  ==========  ==========
spins    beside      alone
=======  ==========  ==========
300,000  3.6 to 6.0  1
30,000   2.6         0.99
10,000   2.3         1.00, 1.05
3,000    1.7, 1.9    0.97, 1.10
100      1.1, 1.4    1.09, 1.10
=======  ==========  ==========

Fewer spins cost time on a quiet machine, as a thread that sleeps has to be woken up.
"""

from __future__ import annotations

import os

_SPINS = 10_000

# Read at the first tensor of torch, which importing PyG makes; see :mod:`pyg_sar.memory`.
os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')
if 'OMP_WAIT_POLICY' not in os.environ:
    os.environ.setdefault('GOMP_SPINCOUNT', str(_SPINS))
