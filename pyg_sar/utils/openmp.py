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

# The first is read at the first tensor of torch, which importing PyG makes (pyg_sar.utils.memory).
SET = {'THP_MEM_ALLOC_ENABLE': '1', 'GOMP_SPINCOUNT': '10000'}
"""What is set in this process, as the user has not."""

for _name in [name for name in SET if name in os.environ]:
    del SET[_name]
if 'OMP_WAIT_POLICY' in os.environ:
    SET.pop('GOMP_SPINCOUNT', None)
os.environ.update(SET)
