"""Whether a tensor was changed in place, and copies until it is."""

from __future__ import annotations

from contextlib import suppress

from torch import Tensor

from pyg_sar.ground.private_names import find_or_none

_lazy_clone = find_or_none('torch._lazy_clone')


def version_of(tensor: Tensor) -> object:
    """A value that is equal as long as nothing is written to a tensor.

    Torch counts no changes of tensors of inference mode: theirs is never equal.
    """
    return object() if tensor.is_inference() else tensor._version


def copy_on_write(tensor: Tensor) -> Tensor:
    """A copy whose memory is the original's until one of them is changed in place."""
    copy = lazy_copy(tensor)
    return tensor.clone() if copy is None else copy


def lazy_copy(tensor: Tensor) -> Tensor | None:
    """As :func:`copy_on_write`, or None where that would take memory at once."""
    if _lazy_clone is not None:
        with suppress(RuntimeError):  # memory that torch did not allocate
            copy: Tensor = _lazy_clone(tensor)
            return copy
    return None
