"""Tensors that know whose rows they hold, and a rule on rows for every function of torch.

Rules stand in a file for each family of functions, see :mod:`pyg_sar.rows.registry`.
"""

from pyg_sar.rows import (
    attention,
    backward,
    diagonal,
    dimensions,
    group,
    index,
    layers,
    losses,
    places,
    pointwise,
    products,
    reads,
    reduce,
    rowwise,
    select,
    shapes,
)
