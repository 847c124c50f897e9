"""Dropout whose masks do not depend on which rank holds a node or an edge."""

from pyg_sar.dropout.draw import EdgeDraws
from pyg_sar.dropout.edge_ids import edge_ids, has_ids
from pyg_sar.dropout.forward import SameDropout, edge_draws, is_running, of_model
