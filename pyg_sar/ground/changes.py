"""Whether a tensor was changed in place."""

from __future__ import annotations

from torch import Tensor


def version_of(tensor: Tensor) -> object:
    """What is equal as long as nothing is written to a tensor.

    Torch counts no changes of tensors that are made in inference mode: theirs is never equal.
    """
    return object() if tensor.is_inference() else tensor._version
