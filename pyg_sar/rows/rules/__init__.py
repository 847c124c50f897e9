"""A rule on rows for every function of torch, a file per family; see pyg_sar.rows.registry."""

from pyg_sar.rows.rules import rowwise
from pyg_sar.rows.rules.layers import attention, items, losses, matrices, norms, products
from pyg_sar.rows.rules.moves import assign, dimensions, group, join, reads, select, shapes
from pyg_sar.rows.rules.numbers import counts, lists, places, pointwise, reduce, softmax
