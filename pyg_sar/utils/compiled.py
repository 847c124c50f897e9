"""How loops are compiled: by numba, kept on disk, without the interpreter's lock.

numba compiles a kept loop anew if its own file has changed, not if this one has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Loop = TypeVar('Loop', bound=Callable[..., Any])

_OPTIONS = {'nogil': True, 'error_model': 'numpy', 'fastmath': {'reassoc', 'contract'}}


def compiled(loop: Loop, **options: Any) -> Loop:
    """Compiles a loop at its first call with arrays of new dtypes, and keeps it on disk."""
    options = _OPTIONS | options
    try:
        return njit(cache=True, **options)(loop)
    except RuntimeError:  # there is no folder that may be written
        return njit(**options)(loop)


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:
    """Asks for the cache line of ``array[index]``, which may lie beyond its end."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(values.data, [arguments[1]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, 'llvm.prefetch.p0')
        # To read, into the nearest cache, data rather than code: as the LLVM manual numbers them.
        builder.call(function, [builder.bitcast(address, byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.uintp), generate


U = np.uintp
"""An index: a signed one may count from the end, and such loops do not vectorise."""

_LINE_BYTES = U(64)
ROWS_AHEAD = U(24)
"""So many narrow rows ahead are asked for."""


@compiled
def prefetch_row(rows: Any, first: Any, width: Any) -> None:
    """Asks for all cache lines of ``rows[first : first + width]``, as :func:`prefetch`."""
    for c in range(U(0), width, _LINE_BYTES // U(rows.itemsize)):
        prefetch(rows, first + c)
