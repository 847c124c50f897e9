"""Which part every node goes to: one file for each method, or for methods that share their code."""

from __future__ import annotations

from pyg_sar.partition.given import GIVEN, RANDOM, RANGE
from pyg_sar.partition.kaminpar import KAMINPAR
from pyg_sar.partition.ldg import FENNEL, LDG
from pyg_sar.partition.method import Method
from pyg_sar.partition.metis import METIS

METHODS: dict[str, Method] = {
    method.name: method for method in (METIS, LDG, FENNEL, KAMINPAR, RANDOM, RANGE, GIVEN)
}
"""All methods by name: the command line, the checks of options and META.json go by what a
:class:`Method` says of itself."""
