"""Whose rows a tensor holds: the nodes of a type, the edges of a relation, or a selection of them.

A rank has some rows of a sharding, in an order of its own. Where the ids of its rows are known,
it can take the own rows from a plain tensor with the rows of the whole graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.comm.ranks import current, world_size
from pyg_sar.comm.rows_by_id import places_of
from pyg_sar.comm.vote import agree
from pyg_sar.utils.tensor_state import version_of

T = TypeVar('T')

_MOST_KEPT = 8
"""Things of each kind that a sharding keeps: those that were used last."""


class Sharding:
    """The rows of all ranks, of which this one has `own`.

    Attributes:
        own: Number of own rows.
        total: Number of rows of all ranks (collective at the first time, if it is not known yet).
        comm: The ranks that have them.
        is_whole: Whether one process holds all rows, in the order of the whole.
        what: What the rows are, for messages: ``'nodes'``, ``"edges of 'cites'"`` ...
        nodes: Of edges, and of what was made of them: the nodes at their ends, destinations first.
        is_learned: Whether they are of a learned table: each rank saves its own, as plain tensors.

    `ids` says which rows of the whole the own ones are, int64 ``[own]``, or how they are found: a
    function of shardings and tensors, by which two shardings are compared. Without it nobody knows.
    """

    total: int
    is_learned = False

    def __init__(
        self,
        own: int,
        *,
        what: str,
        ids: Tensor | partial[Tensor] | None = None,
        total: int | None = None,
        nodes: tuple[Sharding, ...] = (),
    ) -> None:
        self.comm = current()
        self.is_whole = self.comm.size == 1
        self.own, self.what, self.nodes = own, what, nodes
        if total is not None:
            self.total = total
        self._ids = ids
        self._kept: defaultdict[str, dict[Any, Any]] = defaultdict(dict)

    def __getattr__(self, name: str) -> int:
        """`total`, where it is not known yet.

        No cached_property: it holds a lock meanwhile, which ranks that are threads wait for.
        """
        if name != 'total':
            raise AttributeError(f'a Sharding has no {name!r}')
        self.total = rows_of_ranks(self.own)
        return self.total

    @property
    def known_total(self) -> int | None:
        """Number of rows of all ranks; None as long as nobody has asked them."""
        return vars(self).get('total')

    def has_ids(self) -> bool:
        """Whether it is known which rows of the whole the own ones are."""
        if isinstance(self._ids, partial):
            return all(arg.has_ids() for arg in self._ids.args if isinstance(arg, Sharding))
        return self._ids is not None

    def ids(self, device: torch.device) -> Tensor:
        """Which rows of the whole the own ones are, int64 ``[own]``.

        Of a selection they are places among all that are selected, in the order of the whole; they
        are found at the first time (collective, see :func:`pyg_sar.comm.rows_by_id.places_of`).
        """
        find = self._ids
        if find is None or not self.has_ids():
            raise ValueError(
                'it is not known which rows of those that are spread over the ranks the own ones '
                f'are (got {self!r})'
            )
        if isinstance(find, partial):
            find = self.kept('ids', 'found', partial(find, device=device))
        ids = find
        return ids if ids.device == device else self.kept('ids', device, lambda: ids.to(device))

    def local_index(self, ids: Tensor) -> Tensor:
        """Where rows of the whole are among the own ones, of the shape of `ids`; -1 for others."""
        device = ids.device
        own, places = self.kept('places', device, lambda: self.ids(device).sort())
        if not self.own:
            return torch.full_like(ids, -1, dtype=torch.int64)
        at = torch.searchsorted(own, ids.long().contiguous()).clamp(max=self.own - 1)
        return torch.where(own[at] == ids, places[at], -1)

    def kept(self, what: str, key: Any, make: Callable[[], T]) -> T:
        """What is made by a key; all ranks ask in one order, and so drop the same ones."""
        cache = self._kept[what]
        if key in cache:
            value = cache.pop(key)
        else:
            with torch.inference_mode(False):  # it outlives the caller's mode
                value = make()
        cache[key] = value
        while len(cache) > _MOST_KEPT:
            cache.pop(next(iter(cache)))
        return value

    def found_by(self, function: Callable[..., Tensor]) -> tuple[Any, ...] | None:
        """What a function finds the ids from; None of other shardings."""
        find = self._ids
        return find.args if isinstance(find, partial) and find.func is function else None

    def times(self, count: int) -> Sharding:
        """Every row `count` times, one after another."""
        if count == 1:
            return self
        base, before = self.found_by(ids_of_repeated) or (self, 1)
        count *= before
        total = None if base.known_total is None else base.known_total * count
        ids = partial(ids_of_repeated, base, count)
        make = partial(Sharding, base.own * count, what=base.what, ids=ids, total=total)
        return base.kept('times', count, make)

    def selected(self, mask: Tensor) -> Sharding:
        """The rows that a mask of own rows selects; equal for the same mask, not written to since.

        Ranks run one program, so they find the same mask again or all do not. They tell each other
        how many rows it selects now: a shape may be read on one rank alone.
        """

        def make() -> tuple[Tensor, Sharding]:
            with torch._C.DisableTorchFunctionSubclass():  # the mask may be one of rows
                chosen = mask.detach().as_subclass(Tensor).nonzero().view(-1)
            own, ids = chosen.numel(), partial(ids_of_selected, self, chosen)
            total = rows_of_ranks(own) if self.comm.is_here() else None
            what = f'selected {self.what}'
            # While the mask lives, no other has its id().
            return mask, Sharding(own, what=what, ids=ids, total=total, nodes=self.nodes)

        return self.kept('selected', (id(mask), version_of(mask)), make)[1]

    def chosen(self, device: torch.device) -> Tensor:
        """Of a selection, which own rows of the others it has, int64 ``[own]``."""
        _, chosen = self.found_by(ids_of_selected) or ()
        return self.kept('chosen', device, lambda: chosen.to(device))

    def joined(self, others: tuple[Sharding, ...]) -> Sharding:
        """The rows of this sharding, then those of others."""

        def make() -> Sharding:
            parts = [p for s in (self, *others) for p in s.found_by(ids_of_joined) or (s,)]
            own, total = sum(part.own for part in parts), sum(part.total for part in parts)
            ids = partial(ids_of_joined, *parts)
            return Sharding(own, what=self.what, ids=ids, total=total, nodes=self.nodes)

        return self.kept('joined', others, make)

    def scattered(self, count: int) -> Sharding:
        """The sharding of `count` new rows that all ranks have: of the nodes, if there are as many.

        Else the rows are the first nodes, if there are that many, or an even split.
        """
        near = [nodes for nodes in self.nodes if nodes.total >= count]
        for nodes in near:
            if nodes.total == count:
                return nodes

        def make() -> Sharding:
            if near and near[0].has_ids():
                ids = near[0].ids(torch.device('cpu'))
                ids = ids[ids < count]  # a loop at each of the first nodes
            else:
                here, size = self.comm.rank, self.comm.size
                ids = torch.arange(here * count // size, (here + 1) * count // size)
            return Sharding(ids.numel(), what='new rows', ids=ids, total=count)

        return self.kept('scattered', count, make)

    def is_same(self, other: Sharding) -> bool:
        """Whether both hold the same rows in the same order, on all ranks.

        Collective where they are two objects: one vote, whose result is kept.
        """
        return self is other or self.kept(
            'is same', other, lambda: all(agree(_are_alike(self, other)))
        )

    def __deepcopy__(self, memo: Any) -> Sharding:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {'comm': None, '_kept': defaultdict(dict)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, comm=current())

    def __repr__(self) -> str:
        total = self.known_total
        return f'{self.own} of {"?" if total is None else total} {self.what}'


def ids_of_repeated(base: Sharding, count: int, *, device: torch.device) -> Tensor:
    """The ids of rows that come `count` times, one after another."""
    steps = torch.arange(count, device=device)
    return (base.ids(device).unsqueeze(1) * count + steps).view(-1)


def ids_of_selected(of: Sharding, chosen: Tensor, *, device: torch.device) -> Tensor:
    """The places of chosen own rows among those that all ranks choose (collective)."""
    return places_of(of.ids(device)[chosen.to(device)], of.total)


def ids_of_joined(*parts: Sharding, device: torch.device) -> Tensor:
    """The ids of rows of several shardings, one after another."""
    firsts = accumulate([part.total for part in parts], initial=0)
    pairs = zip(parts, firsts, strict=False)
    return torch.cat([part.ids(device) + first for part, first in pairs])


def _are_alike(one: Any, other: Any) -> bool:
    """Whether own rows, or what their ids are found from, are equal on this rank."""
    if isinstance(one, Sharding) and isinstance(other, Sharding):
        is_known = one._ids is not None and one.own == other.own and one.what == other.what
        return one is other or (is_known and _are_alike(one._ids, other._ids))
    if isinstance(one, partial) and isinstance(other, partial):
        return one.func is other.func and _are_alike(one.args, other.args)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_alike, one, other))
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other.to(one.device))
    return bool(one == other)


def rows_of_ranks(own: int) -> int:
    """How many rows all ranks have (collective: one small all-gather)."""
    if world_size() == 1:
        return own
    return int(all_reduce_sum(torch.tensor([own]), 'the number of rows that are selected'))
