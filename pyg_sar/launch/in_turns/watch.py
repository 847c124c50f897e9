"""Sees what the thread of a rank computes, in forward and backward, and brings its memory here.

It sees operations of torch below autograd: also those of autograd itself, and tensors that hide in
a call (views, ``out=``, lists of parameters). Some functions get at memory without an operation,
such as ``tolist`` and pickle: these it sees by name, above autograd.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from pyg_sar.launch.in_turns.evictions import Evictions
from pyg_sar.launch.in_turns.places import read_rows, read_run
from pyg_sar.launch.in_turns.tiers import Away
from pyg_sar.utils.offload import Offered, array_of, watcher
from pyg_sar.utils.tensor_state import GIVE_AWAY, written_by

_SPARSE = {
    torch.sparse_coo: (Tensor._indices, Tensor._values),
    torch.sparse_csr: (Tensor.crow_indices, Tensor.col_indices, Tensor.values),
    torch.sparse_bsr: (Tensor.crow_indices, Tensor.col_indices, Tensor.values),
    torch.sparse_csc: (Tensor.ccol_indices, Tensor.row_indices, Tensor.values),
    torch.sparse_bsc: (Tensor.ccol_indices, Tensor.row_indices, Tensor.values),
}
"""The strided tensors that tensors of other layouts consist of."""

_untyped_storage = Tensor.untyped_storage  # torch's own: in turns another is in its place

_aten = torch.ops.aten
_READ_NOTHING = {
    *(_aten.detach.default, _aten.alias.default, _aten.view.default, _aten.view.dtype),
    *(_aten.new_empty.default, _aten.new_empty_strided.default, _aten.empty_like.default),
    *(_aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default),
    *(_aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default),
}
"""Operations whose results do not depend on what memory holds. Other views look at its size."""

_READ_PAST = {
    *(Tensor.tolist, Tensor.__deepcopy__, Tensor.__reduce_ex__, Tensor.__repr__, Tensor.__format__)
}
"""Functions that read memory without an operation."""


class Watch:
    """The watcher of a rank's thread, and of the threads that compute for it."""

    def __init__(self, evictions: Evictions) -> None:
        self._evictions = evictions

    @contextmanager
    def in_thread(self, stays: bool = False) -> Iterator[None]:
        """See :meth:`pyg_sar.utils.offload.Watcher.in_thread`; with `stays`, its memory stays."""
        with ExitStack() as stack:
            stack.enter_context(watcher.set(self))
            stack.enter_context(_Functions(self._evictions, stays))
            stack.enter_context(_Operations(self._evictions, stays))
            yield

    def needs(self, tensor: Tensor, *, is_written: bool) -> None:
        with torch._C.DisableTorchFunction():
            for storage in _storages(tensor):
                self._evictions.needs(storage, is_written=is_written)

    def leaves(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            for storage in _storages(tensor):
                self._evictions.leaves(storage)

    def keeps(self, tensor: Tensor) -> None:
        with torch._C.DisableTorchFunction():
            for storage in _storages(tensor):
                self._evictions.keep(storage)

    def reads_rows(self, out: Tensor, tensor: Tensor, index: Tensor) -> bool:
        if not self.is_read_by_rows(tensor) or not out.is_contiguous():
            return False
        rows = array_of(index.cpu())
        if len(rows) and not 0 <= rows.min() <= rows.max() < tensor.size(0):
            raise IndexError(f'expected an index of {tensor.size(0)} rows (got another one)')
        with self._on_host(out) as target, self._reading(tensor) as away:
            read_rows(target, tensor, rows, away)
        return True

    def reads_run(self, out: Tensor, run: Tensor) -> bool:
        if not self.is_read_by_rows(run) or not out.is_contiguous():
            return False
        with self._on_host(out) as target, self._reading(run) as away:
            read_run(target, run, away)
        return True

    @contextmanager
    def _on_host(self, out: Tensor) -> Iterator[Tensor]:
        """A tensor on the host to fill for `out`: itself, or one that is copied to it then."""
        target = out
        if out.device.type != 'cpu':
            target = torch.empty(out.shape, dtype=out.dtype, device='cpu', pin_memory=True)
        self.needs(target, is_written=True)
        yield target
        if target is not out:
            out.copy_(target)

    @contextmanager
    def _reading(self, tensor: Tensor) -> Iterator[Away]:
        """Where the bytes of a tensor that is away are; nothing else moves meanwhile."""
        with (
            torch._C.DisableTorchFunction(),
            _disable_current_modes(),
            self._evictions.reading(tensor.untyped_storage()) as away,
        ):
            yield away

    def is_read_by_rows(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return (
                tensor.numel() > 0
                and tensor.is_contiguous()
                and self._evictions.is_read_by_rows(tensor.untyped_storage())
            )

    def offers(self, tensors: Sequence[Tensor], offer: Offered) -> bool:
        with torch._C.DisableTorchFunction():
            storages = [storage for tensor in tensors for storage in _storages(tensor)]

        def settle(offer: Offered) -> None:
            with self.in_thread():
                offer.settle()

        return self._evictions.before_writing(storages, offer, settle)


class _Functions(TorchFunctionMode):
    def __init__(self, evictions: Evictions, stays: bool) -> None:
        super().__init__()
        self._evictions, self._stays = evictions, stays

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gives_away = func in GIVE_AWAY  # others may use it at any time: it stays from then on
        if gives_away or func in _READ_PAST:
            with torch._C.DisableTorchFunction():
                for storage in _storages(args[0]):
                    self._evictions.needs(storage, is_written=gives_away)
                    if gives_away or self._stays:
                        self._evictions.keep(storage)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, evictions: Evictions, stays: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._evictions, self._stays = evictions, stays

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for kind in types:
            # A tensor made of other tensors, whose operations come here.
            if kind.__torch_dispatch__ is not _OF_TENSORS:
                return NotImplemented
        kwargs = kwargs or {}
        reads, makes, writes = func not in _READ_NOTHING, not func.is_view, written_by(func)
        if not (reads or makes):
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        evictions, stays = self._evictions, self._stays
        with torch._C.DisableTorchFunction():
            inputs, changed = set(), []
            for name, value in (*enumerate(args), *kwargs.items()):
                is_written = name in writes
                for storage in _storages(value):
                    inputs.add(storage._cdata)
                    if reads:
                        evictions.needs(storage, is_written=is_written)
                        if stays:
                            evictions.keep(storage)
                    if is_written:
                        changed.append(storage)
            out = func(*args, **kwargs)
            for storage in changed:
                evictions.has_changed_size(storage)
            if makes and not stays:  # results of a user's thread belong to no rank
                for storage in _storages(out):
                    if storage._cdata not in inputs:  # inputs are noted, or older than the ranks
                        evictions.note(storage)
        return out


_OF_TENSORS = Tensor.__torch_dispatch__


def _storages(value: Any) -> Sequence[torch.UntypedStorage]:
    """The storages of a tensor, or of those in a list; of its parts, if it is sparse."""
    if isinstance(value, Tensor):
        if not (value.is_cpu or value.is_cuda):
            return ()
        if value.layout is torch.strided:
            return [_untyped_storage(value)]
        return [_untyped_storage(part(value)) for part in _SPARSE.get(value.layout, ())]
    if isinstance(value, (list, tuple)):
        return [storage for item in value for storage in _storages(item)]
    return ()
