"""What all loaders of mini-batches share: batches, epochs, their state, and threads.

What is drawn follows from ids of the whole graph and from a seed, and batches belong to parts. So
batches do not depend on how many ranks there are, nor on who samples when.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import SubgraphType

from pyg_sar.comm import (
    agree,
    check_equal,
    in_call,
    open_lane,
    takes_turns,
    together,
    world_size,
)
from pyg_sar.rows.attach import as_local, check_not_local
from pyg_sar.sampling.ahead import Ahead
from pyg_sar.sampling.arguments import (
    MEANINGLESS,
    Fans,
    batch_size_of,
    cache_bytes,
    check_kinds,
    fans_of,
    read_others,
    read_places,
)
from pyg_sar.sampling.attributes import check_data, edge_stores, find
from pyg_sar.sampling.batch import Sampler
from pyg_sar.sampling.cache import Cache
from pyg_sar.sampling.graph import build
from pyg_sar.sampling.seeds.links import with_own_links
from pyg_sar.sampling.seeds.nodes import with_own_seeds
from pyg_sar.sampling.seeds.seeds import Asked
from pyg_sar.shard.format.file_names import EdgeKey

_ALIKE = (
    'replace',
    'subgraph_type',
    'disjoint',
    'temporal_strategy',
    'time_attr',
    'weight_attr',
    'batch_size',
    'shuffle',
    'drop_last',
    'seed',
    'cache',
    'prefetch',
)


class Loader:
    """Mini-batches of a cut graph: an iterable.

    A subclass names its arguments, and tells how those of seeds are read.

    Attributes:
        data: What was given.
        transform: What was given.
        batch_size: Seeds of a part in a batch.
        drop_last: What was given.
    """

    _read: Callable[[Data | HeteroData, Mapping[str, Any]], Asked]

    def __init__(self, given: dict[str, Any], others: dict[str, Any]) -> None:
        self._name = type(self).__name__
        with in_call(self._name), torch.inference_mode(False), torch.device('cpu'):
            self._make(given, others)

    def _make(self, given: dict[str, Any], others: dict[str, Any]) -> None:
        if isinstance(given['subgraph_type'], SubgraphType):
            given['subgraph_type'] = given['subgraph_type'].value
        typed = given['data']

        def read() -> tuple[dict[str, Any], dict[EdgeKey, tuple[int, ...]], Asked]:
            check_not_local(self._name, typed)
            own = as_local(with_own_links(with_own_seeds(given)))
            data = own['data']
            read_others(self._name, others, own)
            check_data(data, world_size(), self._name)
            stores = edge_stores(data)
            shard = next(iter(stores.values())).edge_index.handle.shard
            num_parts = shard.num_parts if shard.cut is None else shard.cut[0].num_parts
            own['batch_size'] = batch_size_of(own, num_parts)
            check_kinds(own)
            own['cache'] = cache_bytes(own['cache'])
            num_neighbors = fans_of(own['num_neighbors'], list(stores))
            return own, num_neighbors, self._read(data, own)

        given, num_neighbors, (same_seeds, make_seeds) = together(read)
        data = given['data']
        same = {name: given[name] for name in _ALIKE}
        same |= {'num_neighbors': list(num_neighbors.items()), **same_seeds}
        answers = agree(same)
        for name in same:
            check_equal(f"'{name}'", [each[name] for each in answers])
        disjoint = given['disjoint'] or given['time_attr'] is not None
        is_last = given['temporal_strategy'] == 'last'
        found = find(data)
        graph = build(
            data, found, given['time_attr'], given['weight_attr'], replace=given['replace']
        )
        seeds = make_seeds(graph, disjoint)
        counts = agree((seeds.key.numel(), seeds.num_batches(given['drop_last'])))
        self._num_batches: int = max(count for _, count in counts)
        if not self._num_batches:
            num_seeds, size = sum(num for num, _ in counts), given['batch_size']
            raise ValueError(
                f"'{next(iter(same_seeds))}' must give a batch of {size} seeds in some part (got "
                f'{num_seeds} seeds on all ranks, with drop_last={given["drop_last"]})'
            )
        of_speed = ('cache', 'prefetch')  # the batches are the same
        self._identity = {k: v for k, v in same.items() if k not in of_speed}
        self._identity['num_batches'] = self._num_batches
        fans = Fans(num_neighbors, given['replace'], is_last, given['subgraph_type'], disjoint)
        cache = None
        if given['cache'] is not None and graph.world_size > 1:
            cache = Cache(graph, found, fans, seeds, given['cache'])
        self._sampler = Sampler(typed, graph, fans, seeds, cache)
        self.data, self.transform = typed, given['transform']
        self.batch_size, self.drop_last = given['batch_size'], given['drop_last']
        self._prefetch = 0 if takes_turns() else given['prefetch']
        self._lane = open_lane() if self._prefetch else None
        if self._lane is not None:
            weakref.finalize(self._sampler, self._lane.close).atexit = False
        self._epoch, self._at, self._is_loaded, self._num_calls = -1, 0, False, 0
        self._source: Ahead | None = None
        self._iteration: Callable[[], _Iteration | None] = lambda: None

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Begins an epoch, or goes on with one that was loaded (collective)."""
        with in_call(self._name), torch.device('cpu'):
            if self._source is not None:
                self._source.leave()
                self._source.join()
                self._source = None
            epoch, at = (self._epoch, self._at) if self._is_loaded else (self._epoch + 1, 0)
            attributes, cache = find(as_local(self._sampler.data)), self._sampler.cache
            answers = agree(((epoch, at), cache is None or cache.is_fresh(attributes)))
            check_equal('epoch and batch', [place for place, _ in answers])
            if cache is not None and not all(is_fresh for _, is_fresh in answers):
                cache.fill(attributes)
            self._epoch, self._at, self._is_loaded = epoch, at, False

            def make(is_wanted: Callable[[], bool]) -> Iterator[Data | HeteroData]:
                return sampler.batches(attributes, epoch, range(at, end), is_wanted)

            sampler, end = self._sampler, self._num_batches
            self._source = Ahead(make, self._prefetch, self._lane, self._name)
        iteration = _Iteration(self, self._source)
        self._iteration = weakref.ref(iteration)
        return iteration

    def _next(self, iteration: _Iteration, source: Ahead) -> Data | HeteroData:
        if self._iteration() is not iteration:
            raise ValueError('expected the newest iteration of this loader (got an older one)')
        batch = source.next()
        self._at += 1
        return batch if self.transform is None else self.transform(batch)

    @property
    def dataset(self) -> range:
        """Places of the seeds of this rank, each 0 .. number of its seeds - 1."""
        return range(self._sampler.seeds.key.numel())

    def __call__(self, index: Any) -> Data | HeteroData:
        """The batch of chosen seeds, as of :meth:`collate_fn`, after `transform` (collective)."""
        batch = self.collate_fn(index)
        return batch if self.transform is None else self.transform(batch)

    def collate_fn(self, index: Any) -> Data | HeteroData:
        """The batch of chosen seeds, in their order, before `transform` (collective).

        Every rank chooses among its own seeds, and all ranks call; one that needs nothing gives
        ``[]``. Every call draws other neighbours, which follow from `seed` and the number of the
        call; the epochs stay what they are.

        Args:
            index: Places in :attr:`dataset`, int64 ``[num_seeds]`` or a list, or a mask, bool
                ``[len(dataset)]``.

        Raises:
            ValueError: On all ranks, if one chooses what is no place.
        """
        with in_call(self._name), torch.inference_mode(False), torch.device('cpu'):
            sampler = self._sampler
            places = together(lambda: read_places(as_local(index), len(self.dataset)))
            call, self._num_calls = self._num_calls, self._num_calls + 1
            check_equal('number of calls of a loader', agree(call))
            return sampler.of_places(places, call)

    def __getattr__(self, name: str) -> Any:
        why = f': {MEANINGLESS[name]}' if name in MEANINGLESS else ''
        raise AttributeError(f"{type(self).__name__} has no '{name}'{why}")

    @property
    def hit_rate(self) -> float:
        """Of the rows of other ranks that batches have read, the share that was in the cache."""
        cache = self._sampler.cache
        return 0.0 if cache is None else cache.num_found / max(cache.num_read, 1)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: so many batches of its epoch have been taken.

        Equal on all ranks, and for any number of ranks.
        """
        place = {'epoch': self._epoch, 'batch': self._at, 'calls': self._num_calls}
        return {**place, **self._identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next ``iter(loader)`` go on from there, with the batches that were left.

        An iteration that is under way ends.

        Raises:
            ValueError: If it is of a loader with other batches.
        """
        for name, own in self._identity.items():
            if state.get(name) != own:
                raise ValueError(
                    f"expected the state of a loader with the '{name}' of this one, {own} (got "
                    f'{state.get(name)})'
                )
        self._epoch, self._at = int(state['epoch']), int(state['batch'])
        self._num_calls = int(state.get('calls', 0))
        self._is_loaded = self._epoch >= 0 and self._at < len(self)
        self._iteration = lambda: None

    def __repr__(self) -> str:
        return f'{self._name}()'


class _Iteration(Iterator[Any]):
    """The batches of an epoch; when the last reference to it goes, its loop has been left."""

    def __init__(self, loader: Loader, source: Ahead) -> None:
        self._loader, self._source = loader, source

    def __next__(self) -> Data | HeteroData:
        return self._loader._next(self, self._source)

    def __del__(self) -> None:
        self._source.leave()
