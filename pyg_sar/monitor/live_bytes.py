"""Counts the bytes of tensors that are alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.utils.nested import leaves


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all tensors that are made while it is on, and drops those freed.

    It sees every operation below autograd, in forward and backward. So it counts all tensors of a
    model and its convs, without a formula. It does not see scratch memory inside one operation. The
    `uncounted` tensors, which were there before, and their views do not count.

    Attributes:
        live: Bytes alive now.
        peak: The most that has been alive at once.
    """

    def __init__(self, uncounted: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._uncounted = [t.untyped_storage() for t in uncounted]
        self._seen = {storage._cdata for storage in self._uncounted}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # torch 2.5 asks them again
            out = func(*args, **(kwargs or {}))
        for value in leaves(out):
            if isinstance(value, Tensor) and value.layout == torch.strided:
                self._count(value.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size
