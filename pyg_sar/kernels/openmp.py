"""Sets, before torch is imported, huge pages and how long its threads spin for each other.

torch computes with the OpenMP of GCC. A thread that waits for the others spins for some
milliseconds before it sleeps. Where other programs run, too, it uses up its share of a core by
that, and the thread that it waits for does not run. GAT has a thousand such waits in an epoch.
GOMP_SPINCOUNT says how long a thread spins, and is read when torch is imported. So pyg_sar sets it
when it is imported, in time if that is before torch.

Fewer spins cost time on a quiet machine, as a thread that sleeps has to be woken up. Times:
docs/speed.md.
"""

from __future__ import annotations

import os

_SPINS = 10_000

# Read at the first tensor of torch, which importing PyG makes; see :mod:`pyg_sar.memory`.
os.environ.setdefault('THP_MEM_ALLOC_ENABLE', '1')
if 'OMP_WAIT_POLICY' not in os.environ:
    os.environ.setdefault('GOMP_SPINCOUNT', str(_SPINS))
