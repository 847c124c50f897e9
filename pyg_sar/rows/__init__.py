"""Rows that know whose they are: data of a cut graph, and what may be computed with them."""

from pyg_sar.rows import rules
from pyg_sar.rows.attach import gather, local
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.space import Space
