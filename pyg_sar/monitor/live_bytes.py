"""Counts the bytes of tensors that are alive at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.ground.nested import leaves
from pyg_sar.ground.private_names import find_or_none

_LAZY_CLONE = find_or_none('torch.ops.aten._lazy_clone.default')


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
        if func is _LAZY_CLONE:
            # A lazy copy shares the original's memory while nobody writes to it; the memory stays
            # as long as one of the two.
            copy, original = out.untyped_storage(), args[0].untyped_storage()
            self._seen.add(copy._cdata)
            weakref.finalize(copy, self._free, copy._cdata, 0, original).atexit = False
            return out
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

    def _free(self, key: int, size: int, _: torch.UntypedStorage | None = None) -> None:
        self._seen.discard(key)
        self.live -= size
