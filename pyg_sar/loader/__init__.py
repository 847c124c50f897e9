"""Mini-batches of the graph of all ranks, exactly as one process would draw them."""

from pyg_sar.loader.link_neighbor_loader import LinkNeighborLoader
from pyg_sar.loader.neighbor_loader import NeighborLoader
from pyg_sar.rows.over_ranks import gather_batches, mean_of_batches
