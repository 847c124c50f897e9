"""What programs need of the nodes of all ranks: sums and means of own rows, and rows by id."""

from pyg_sar.over_all_nodes.reductions import global_mean, global_sum
from pyg_sar.over_all_nodes.rows import rows
from pyg_sar.over_all_nodes.sampling import negative_sampling, permute_rows
