"""What every function of torch is on rows, one file per family; see pyg_sar.rows.registry."""

from pyg_sar.rows.rules import (
    along,
    cores,
    items,
    losses,
    norms,
    places,
    pointwise,
    reads,
    reduce,
    softmax,
)
