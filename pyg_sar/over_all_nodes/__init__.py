"""What programs need of the nodes of all ranks: reductions, and rows by id."""

from pyg_sar.over_all_nodes.reductions import (
    global_max,
    global_mean,
    global_min,
    global_softmax,
    global_std,
    global_sum,
)
from pyg_sar.over_all_nodes.rows import rows
from pyg_sar.over_all_nodes.sampling import negative_sampling, permute_rows
