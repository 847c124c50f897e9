"""A rule on rows for every function of torch, a file per family; see pyg_sar.rows.registry."""

from pyg_sar.rows import argmax as places
from pyg_sar.rows import (
    assign,
    attention,
    counts,
    dimensions,
    group,
    items,
    join,
    lists,
    losses,
    matrices,
    norms,
    pointwise,
    products,
    reads,
    reduce,
    rowwise,
    select,
    shapes,
    softmax,
)
