"""Mini-batches of the graph of all ranks, exactly as one process would draw them."""

from pyg_sar.sampling.link_neighbor_loader import LinkNeighborLoader
from pyg_sar.sampling.neighbor_loader import NeighborLoader
