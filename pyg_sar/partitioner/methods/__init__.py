"""Which part every node goes to: one file for each method, or for methods that share their code.

A file of this folder adds methods by naming them in a tuple ``METHODS``; the command line, the
checks of options and META.json know them by what is said of them there. So a new method is one
file, and a change of one reads two: its own and ``method.py``, which says what a method is.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from pyg_sar.partitioner.methods.method import Method

METHODS: dict[str, Method] = {
    method.name: method
    for file in iter_modules(__path__)
    for method in getattr(import_module(f'{__name__}.{file.name}'), 'METHODS', ())
}
"""All methods by name."""
