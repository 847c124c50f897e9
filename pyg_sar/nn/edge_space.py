"""The edges of a block as rows of their own, and ranks that never answer.

A message runs once on such rows (:mod:`pyg_sar.nn.analysis`). A function that works row by row has
a rule that works row by row. One that needs other rows asks the other ranks for them, and here that
raises a :class:`~pyg_sar.nn.intercept.MessageError`. No value is read and no result is compared, so
the outcome is the same whatever the rows hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyg_sar.comm.comm import Comm
from pyg_sar.nn.counts import (
    ALL_EDGES,
    CountedShape,
    counted,
    is_count,
    note_refusal,
    numbers_in,
    plain_number,
    refuse,
)
from pyg_sar.nn.intercept import (
    SourceIndex,
    UnsupportedMessageError,
    WatchedIndex,
)
from pyg_sar.nn.leaky_scores import ScoreNotes
from pyg_sar.nn.source_rows import EndProducts
from pyg_sar.rows.registry import bare_name, name_of, names
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.sharding import Sharding, ids_of_selected
from pyg_sar.rows.users_functions import LIBRARIES
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.rng import random_states
from pyg_sar.utils.tensor_state import version_of


def _asks(what: str) -> NoReturn:
    refuse(f'it asks the other ranks: {what}')


class SilentComm(Comm):
    """Ranks that never answer; plain tensors are alike on them."""

    rank, size = 0, 2

    def guard(self, operation: str, *_: Any, **__: Any) -> AbstractContextManager[None]:  # noqa: D102
        return nullcontext()

    def vote(  # noqa: D102
        self, tag: str, bits: Sequence[bool] = (), fingerprint: str = ''
    ) -> list[int] | None:
        return [self.size * bit for bit in bits] if fingerprint else _asks(tag)

    def sum_small(self, tag: str, tensor: Tensor, bit: bool = False) -> int:  # noqa: D102
        _asks(tag)

    def sum_large(self, tag: str, tensor: Tensor) -> None:  # noqa: D102
        _asks(tag)

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:  # noqa: D102
        _asks(what)

    def all_reduce(self, *_: Any) -> None:  # noqa: D102
        _asks('a sum')

    def all_gather(self, own: Tensor) -> Tensor:  # noqa: D102
        _asks('a gather')

    def all_to_all(self, *_: Any) -> None:  # noqa: D102
        _asks('an exchange')

    def broadcast(self, tensor: Tensor) -> None:  # noqa: D102
        _asks('a broadcast')


class BlockRows(Sharding):
    """The edges of a block, or their destinations: nobody knows which of the whole they are."""

    def has_ids(self) -> bool:  # noqa: D102
        return False

    def ids(self, device: torch.device) -> Tensor:  # noqa: D102
        _asks('the ids of edges')

    def local_index(self, ids: Tensor) -> Tensor:  # noqa: D102
        _asks('rows by their ids')

    def scattered(self, count: int) -> Sharding:  # noqa: D102
        _asks('rows for all ranks')

    def is_same(self, other: Sharding) -> bool:
        """Only one object is the same: two masks are equal on some edges by chance."""
        return self is other

    def selected(self, mask: Tensor) -> Sharding:
        """Nobody knows how many rows a mask selects."""
        known = self._kept['selected']
        for old, version, sharding in known.values():
            if old is mask and version == mask._version:
                return sharding
        with plainly():
            chosen = plain(mask.detach()).nonzero().view(-1)
        total = ALL_EDGES * (53 + 2 * len(known))
        ids, what = partial(ids_of_selected, self, chosen), f'selected {self.what}'
        rows = BlockRows(chosen.numel(), what=what, ids=ids, total=total)
        known[total] = mask, mask._version, rows
        return rows


_SHAPES = {Tensor.size, Tensor.shape.__get__}  # type: ignore[attr-defined]
_SIZES = _SHAPES | {Tensor.numel, Tensor.nelement, torch.numel, Tensor.__len__}
_RESHAPES = names('view reshape unflatten expand broadcast_to')
"""Functions of rows that may get the number of rows."""

_MAKE_ROWS = names(
    'zeros ones full empty rand randn randint normal expand broadcast_to new_zeros new_ones '
    'new_full new_empty'
)
"""Functions that make so many rows, each by itself."""

_HOOKS = names('register_hook register_post_accumulate_grad_hook grad_fn')
_COMPARISONS = names('eq ne lt le gt ge')
_READ_VALUES = names(
    '__bool__ __int__ __float__ __index__ __complex__ item tolist numpy __array__ __contains__ '
    '__repr__ __format__ is_nonzero equal allclose'
)
"""Functions that give Python what a tensor holds."""


def refuse_own_backward(function: Any) -> None:
    """Refuses a Function of the program, whose backward would get gradients of some edges."""
    if not function.__module__.startswith(LIBRARIES):
        refuse(f"it has a backward of its own ('{function.__name__}')")


class Watch(TorchFunctionMode):
    """While it lasts, notes what a message asks for that no rule sees.

    Args:
        edges: The edges of the block.
        nodes: Their destinations.
        device: Where they are.

    Attributes:
        edge_bytes: What the largest tensor with a row per edge takes for each, but for products of
            both ends.
        reads_tables: Whether ids of edges, such as relations, index a tensor with gradients.
        by_destination: Whether rows of destinations were read at the edges.
        scores: What scores of attention may be made of.
        is_off: Whether it lets everything pass.
    """

    def __init__(self, edges: BlockRows, nodes: BlockRows, device: torch.device) -> None:
        super().__init__()
        self.edges, self.nodes = edges, nodes
        self.edge_bytes = 0
        self.reads_tables = self.by_destination = self.is_off = False
        self.scores = ScoreNotes()
        self._device = device
        self._alike: dict[Any, Any] = {}
        self._kept: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_off:
            return func(*args, **kwargs or {})
        try:
            return self._call(func, args, kwargs or {})
        except ValueError as error:  # by which rules refuse
            note_refusal(str(error))
            raise

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in _SIZES:
            return self._size(func, args, kwargs)
        values, name = leaves((args, kwargs)), bare_name(func)
        if any(isinstance(value, WatchedIndex) for value in values):
            return self._indexed(func, args, kwargs)
        rows = [value for value in values if isinstance(value, Rows)]
        if not all(isinstance(value._sharding.comm, SilentComm) for value in rows):
            refuse(f"'{name}' of rows, where a message sees some edges")
        if any(map(is_count, numbers_in(values))):
            return self._noted(self._sized(func, args, kwargs, rows))
        if name in _HOOKS:
            refuse('it hangs a hook on what it computes, which would get gradients of some edges')
        if not rows:
            return self._without_rows(func, args, kwargs)
        if func is Tensor.__getitem__ and isinstance(args[1], Rows):
            self.reads_tables |= not isinstance(args[0], Rows) and args[0].requires_grad
        if kwargs.get('generator') is not None:
            refuse(f"'{name}' draws by a generator of the program")
        is_mask = name in _COMPARISONS and not kwargs
        out = self._noted(self._compared(func, args) if is_mask else func(*args, **kwargs))
        self.scores.note(out, func, args, kwargs)
        return out

    def _noted(self, out: Any) -> Any:
        for value in out if isinstance(out, (tuple, list)) else (out,):
            is_of_edges = isinstance(value, Rows) and value._sharding is not self.nodes
            if is_of_edges and not isinstance(value, EndProducts):
                with plainly():
                    # A view may have more entries than memory.
                    held = value.numel() * value.element_size()
                    if value._is_view():
                        held = min(held, value.untyped_storage().nbytes())
                    own = max(value.size(value._dim), 1)
                self.edge_bytes = max(self.edge_bytes, held // own)
        return out

    def _size(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(args[0], (WatchedIndex, SourceIndex)):
            shape: Any = (getattr(args[0], '_sharding', self.edges).total,)
            is_shape = func in _SHAPES and len(args) == 1 and not kwargs
            out = shape if is_shape else shape[0]
        else:
            out = func(*args, **kwargs)
        if func is Tensor.__len__ and is_count(out):  # Python makes a plain int of it
            refuse('it asks for len() of all edges')
        if isinstance(out, int):
            return counted(out)
        return CountedShape(map(counted, out)) if any(map(is_count, out)) else out

    def _indexed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Rows of destinations read at the edges, and the index of edges that a mask selects."""
        name = name_of(func)
        if name in ('device', 'dtype', 'ndim', 'dim') and len(args) == 1:
            with plainly():
                return func(*args, **kwargs)
        values, index = args[0], args[-1]
        is_item = name == '__getitem__' and isinstance(values, WatchedIndex)
        if is_item and isinstance(index, Rows) and index._sharding is values._sharding:
            with plainly():
                if index.dtype == torch.bool:
                    mask = plain(index)
                    return WatchedIndex.of(values.own[mask], values._sharding.selected(index))
        if isinstance(values, Rows) and isinstance(index, WatchedIndex) and not kwargs:
            dims = {'__getitem__': 0, 'index_select': args[1]}
            if values._sharding is self.nodes and dims.get(name) == values._dim:
                self.by_destination = True
                with plainly():
                    out = plain(values).index_select(values._dim, index.own)
                    return tag(out, values._dim, index._sharding)
        refuse(f"it uses the destination index in '{name}'", UnsupportedMessageError)

    def _sized(self, func: Any, args: Any, kwargs: Any, rows: list[Rows]) -> Any:
        """A function that gets a number of edges: it makes so many rows, or it asks for it."""
        name = bare_name(func)
        if rows and name in _RESHAPES:
            return func(*in_nested(args, plain_number), **in_nested(kwargs, plain_number))
        sizes = kwargs.get('size') or next((a for a in args if isinstance(a, (list, tuple))), args)
        sizes = [size for size in sizes if not isinstance(size, Tensor)]
        dims = [dim for dim, size in enumerate(sizes) if is_count(size)]
        num_counts = sum(map(is_count, numbers_in(leaves((args, kwargs)))))
        has_generator = kwargs.get('generator') is not None
        if name not in _MAKE_ROWS or len(dims) != 1 or num_counts != 1 or has_generator:
            refuse(f"it gives '{name}' the number of edges or nodes that it sees")
        (dim,) = dims
        number = plain_number(sizes[dim])
        of = self.edges if number % ALL_EDGES == 0 else self.nodes
        count, rest = divmod(number, of.total)
        if rest or not count:
            refuse(f"it gives '{name}' a number that it computed from the number of edges")
        sharding = of.times(count)

        def own(value: Any) -> Any:
            return sharding.own if is_count(value) else plain(value)

        with plainly():
            return tag(func(*in_nested(args, own), **in_nested(kwargs, own)), dim, sharding)

    def _without_rows(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function of what is alike for all edges: it may not draw.

        Python may not read it: another value may be another message.
        """
        if getattr(func, '__name__', '') == '__get__':
            return func(*args, **kwargs)
        if name_of(func) in _READ_VALUES:
            refuse(f"it reads in Python what a tensor holds ('{name_of(func)}')")
        before = random_states(self._device)
        out = func(*args, **kwargs)
        if not all(map(torch.equal, before, random_states(self._device))):
            refuse(f"it draws by '{name_of(func)}', not some numbers for every edge")
        return out

    def _compared(self, func: Any, args: Any) -> Any:
        """The same mask for the same comparison: what two of them select are the same rows."""
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        key = func, *(id(arg) if isinstance(arg, Tensor) else arg for arg in args)
        mask, *then = self._alike.get(key, (None,))
        with plainly():
            versions = [*map(version_of, tensors)]
            if mask is not None and then == [versions, version_of(mask)]:
                return mask
        mask = func(*args)
        self._kept += tensors  # ids are used again
        with plainly():
            self._alike[key] = mask, versions, version_of(mask)
        return mask
