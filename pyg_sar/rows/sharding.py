"""Whose rows a tensor holds: the nodes of a type, the edges of a relation, or a selection of them.

A rank has some rows of a sharding, in an order of its own. Where the ids of its rows are known,
it can take the own rows from a plain tensor with the rows of the whole graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import current, rank, world_size
from pyg_sar.comm.rows_by_id import places_of
from pyg_sar.comm.vote import agree
from pyg_sar.utils.tensor_state import version_of

T = TypeVar('T')

_MOST_KEPT = 8
"""Derived shardings of each kind that a sharding keeps: those that were used last."""


class Sharding:
    """The rows of all ranks, of which this one has `own`.

    Attributes:
        own: Number of own rows.
        comm: The ranks that have them; None of a sharding that comes from another process.
        is_whole: Whether one process holds all rows, in the order of the whole.
        what: What the rows are, for messages: ``'nodes'``, ``"edges of 'cites'"`` ...
        parent: Of a selection the sharding that it was selected from.
        mask: Of a selection, which own rows of `parent` it has, bool ``[parent.own]``.
        base: Of rows that stand for others `count` times, one after another, those others.
        count: How often; 1 without a base.
        pieces: Of shardings that were joined, these, one after another.
        neighbours: Further shardings that new tensors may be meant for, as of edges those of nodes.
        is_learned: Whether they are of a learned table: each rank saves its own, as plain tensors.
        total: Number of rows of all ranks (collective at the first time, if it is not known yet).
    """

    total: int
    is_learned = False

    def __init__(
        self,
        own: int,
        *,
        what: str,
        ids: Tensor | None = None,
        total: int | None = None,
        parent: Sharding | None = None,
        mask: Tensor | None = None,
        base: Sharding | None = None,
        count: int = 1,
        pieces: tuple[Sharding, ...] = (),
        neighbours: tuple[Sharding, ...] = (),
    ) -> None:
        self.comm: Comm | None = current()
        self.is_whole = self.comm.size == 1
        self.own, self.what, self.parent, self.mask = own, what, parent, mask
        self.base, self.count, self.pieces, self.neighbours = base, count, pieces, neighbours
        self._ids = ids
        if total is not None:
            self.total = total
        self._forget()

    def _forget(self) -> None:
        """Forgets all that was derived from this sharding."""
        self._selections: list[tuple[Tensor, object, Sharding]] = []
        self._derived: dict[str, dict[Any, Any]] = defaultdict(dict)

    def __getattr__(self, name: str) -> int:
        """`total`, where it is not known yet.

        No cached_property: it holds a lock meanwhile, which ranks that are threads wait for.
        """
        if name != 'total':
            raise AttributeError(f'a Sharding has no {name!r}')
        if self.base is not None:
            self.total = self.base.total * self.count
        else:
            self.total = rows_of_ranks(self.own)
        return self.total

    @property
    def known_total(self) -> int | None:
        """Number of rows of all ranks, if it is known without asking them."""
        source = self if 'total' in vars(self) or self.base is None else self.base
        return self.total if 'total' in vars(source) else None

    def has_ids(self) -> bool:
        """Whether it is known which rows of the whole the own ones are."""
        source = self.parent or self.base
        sources = self.pieces if source is None else (source,)
        return self._ids is not None or (len(sources) > 0 and all(s.has_ids() for s in sources))

    def ids(self, device: torch.device) -> Tensor:
        """Which rows of the whole the own ones are, int64 ``[own]``.

        Of a selection they are places among all that are selected, in the order of the whole; they
        are found at the first time (collective, see :func:`pyg_sar.comm.rows_by_id.places_of`).
        """
        if self._ids is None or self._ids.device != device:
            self._ids = (self._find_ids(device) if self._ids is None else self._ids).to(device)
        return self._ids

    @torch.inference_mode(False)  # they outlive the caller's mode
    def _find_ids(self, device: torch.device) -> Tensor:
        if self.base is not None:
            steps = torch.arange(self.count, device=device)
            return (self.base.ids(device).unsqueeze(1) * self.count + steps).view(-1)
        if self.pieces and self.has_ids():
            firsts = accumulate([sharding.total for sharding in self.pieces], initial=0)
            pairs = zip(self.pieces, firsts, strict=False)
            return torch.cat([piece.ids(device) + first for piece, first in pairs])
        if self.parent is not None and self.mask is not None:
            of_parent = self.parent.ids(self.mask.device)[self.mask]
            return places_of(of_parent, self.parent.total)
        raise ValueError(
            'it is not known which rows of those that are spread over the ranks the own ones '
            f'are (got {self!r})'
        )

    def local_index(self, ids: Tensor) -> Tensor:
        """Where rows of the whole are among the own ones, of the shape of `ids`; -1 for others."""
        device = ids.device
        own, places = self.kept('places', device, lambda: self.ids(device).sort())
        if not self.own:
            return torch.full_like(ids, -1, dtype=torch.int64)
        at = torch.searchsorted(own, ids.long().contiguous()).clamp(max=self.own - 1)
        return torch.where(own[at] == ids, places[at], -1)

    def chosen(self, device: torch.device) -> Tensor:
        """Of a selection, which own rows of `parent` it has, int64 ``[own]``."""
        assert self.mask is not None
        mask = self.mask
        return self.kept('chosen', device, lambda: mask.to(device).nonzero().view(-1))

    def kept(self, what: str, key: Any, make: Callable[[], T]) -> T:
        """What is derived by a key; all ranks ask in one order, and so drop the same ones."""
        cache = self._derived[what]
        if key in cache:
            value = cache.pop(key)
        else:
            with torch.inference_mode(False):  # it outlives the caller's mode
                value = make()
        cache[key] = value
        while len(cache) > _MOST_KEPT:
            cache.pop(next(iter(cache)))
        return value

    def times(self, count: int) -> Sharding:
        """Every row `count` times, one after another."""
        if self.base is not None:
            return self.base.times(self.count * count)
        if count == 1:
            return self
        own, what = self.own * count, self.what
        return self.kept('times', count, lambda: Sharding(own, what=what, base=self, count=count))

    def selected(self, mask: Tensor) -> Sharding:
        """The rows that a mask of own rows selects; equal for the same mask, not written to since.

        Ranks run one program, so they find the same mask again or all do not. They tell each other
        how many rows it selects now: a shape may be read on one rank alone.
        """
        version = version_of(mask)
        for old_mask, then, sharding in self._selections:
            if old_mask is mask and then == version:
                return sharding
        # The mask may be one of rows; what is kept outlives the caller's mode.
        with torch._C.DisableTorchFunctionSubclass(), torch.inference_mode(False):
            own = mask.detach().as_subclass(Tensor).clone()  # it may be written to
        count = int(own.sum())
        in_worker = torch.utils.data.get_worker_info() is not None
        sharding = Sharding(
            count,
            what=f'selected {self.what}',
            total=None if in_worker else rows_of_ranks(count),
            parent=self,
            mask=own,
            neighbours=self.neighbours,
        )
        self._selections.append((mask, version, sharding))
        del self._selections[:-_MOST_KEPT]
        return sharding

    def joined(self, others: tuple[Sharding, ...]) -> Sharding:
        """The rows of this sharding, then those of others."""
        shardings = (self, *others)
        return self.kept(
            'joined',
            others,
            lambda: Sharding(
                sum(sharding.own for sharding in shardings),
                what=self.what,
                pieces=shardings,
                total=sum(sharding.total for sharding in shardings),
                neighbours=self.neighbours,
            ),
        )

    def scattered(self, count: int) -> Sharding:
        """Where new rows go that are equal on all ranks: to nodes, if there are so many."""
        fitting = [sharding for sharding in self.neighbours if sharding.total >= count]
        for sharding in fitting:
            if sharding.total == count:
                return sharding

        def make() -> Sharding:
            if fitting and fitting[0].has_ids():
                ids = fitting[0].ids(self._device())
                ids = ids[ids < count]  # a loop at each of the first nodes
            else:
                ranks, here = world_size(), rank()
                ids = torch.arange(here * count // ranks, (here + 1) * count // ranks)
            return Sharding(ids.numel(), what='new rows', ids=ids, total=count)

        return self.kept('scattered', count, make)

    def is_same(self, other: Sharding) -> bool:
        """Whether both hold the same rows in the same order, on all ranks.

        Collective where two selections or lists of ids have to be compared; the answer is kept.
        """
        if self is other:
            return True

        def ask() -> bool:
            for sharding in (self, other):
                if sharding.pieces and sharding.has_ids():
                    sharding.ids(sharding._device())
            return all(agree(self._is_alike_here(other)))

        return self.kept('is same', other, ask)

    def _is_alike_here(self, other: Sharding) -> bool:
        if self.own != other.own:
            return False
        if self.parent is not None and other.parent is not None:
            assert self.mask is not None
            assert other.mask is not None
            is_alike = self.parent is other.parent or self.parent._is_alike_here(other.parent)
            return is_alike and torch.equal(self.mask, other.mask.to(self.mask.device))
        if self.base is not None and other.base is not None and self.count == other.count:
            return self.base._is_alike_here(other.base)
        if self._ids is None or other._ids is None:
            return False
        is_alike = self.what == other.what and self.known_total == other.known_total
        return is_alike and torch.equal(self._ids, other._ids.to(self._ids.device))

    def _device(self) -> torch.device:
        if self._ids is None and (self.base is not None or self.pieces):
            return (self.base or self.pieces[0])._device()
        tensor = self._ids if self._ids is not None else self.mask
        return torch.device('cpu') if tensor is None else tensor.device

    def __deepcopy__(self, memo: Any) -> Sharding:
        return self

    def __getstate__(self) -> dict[str, Any]:
        derived = {'_selections', '_derived'}
        kept = {name: value for name, value in vars(self).items() if name not in derived}
        return kept | {'comm': None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def __repr__(self) -> str:
        total = self.known_total
        return f'{self.own} of {"?" if total is None else total} {self.what}'


def rows_of_ranks(own: int) -> int:
    """How many rows all ranks have (collective: one small all-gather)."""
    if world_size() == 1:
        return own
    return int(all_reduce_sum(torch.tensor([own]), 'the number of rows that are selected'))
