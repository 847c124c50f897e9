"""Functions over the nodes of all ranks: rows by id, and random pairs."""

from pyg_sar.over_all_nodes.rows import rows
from pyg_sar.over_all_nodes.sampling import negative_sampling
