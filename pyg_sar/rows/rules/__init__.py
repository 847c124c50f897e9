"""What every function of torch is on rows, one file per family; see pyg_sar.rows.registry."""

from pyg_sar.rows.rules import (
    along,
    assign,
    cores,
    counts,
    dimensions,
    group,
    items,
    join,
    losses,
    norms,
    places,
    pointwise,
    products,
    reads,
    reduce,
    select,
    shapes,
    softmax,
)
