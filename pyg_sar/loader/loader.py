"""The base of all loaders of mini-batches: batches, epochs, and their state.

All ranks have one list of seeds, and every epoch one order of it, as on one machine. A rank takes
its own seeds of a batch. What is drawn follows from ids of the whole graph, and from a number of
the epoch: it depends neither on how many ranks there are, nor on who samples when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm.errors import in_call
from pyg_sar.comm.ranks import left_by, world_size
from pyg_sar.comm.vote import agree, check_equal, raise_on_all, vote
from pyg_sar.loader.arguments import LoaderOptions, Options, fans_of, read_options
from pyg_sar.loader.attributes import (
    AttributeRows,
    Unchanged,
    check_data,
    edge_stores,
    find,
    own_data,
)
from pyg_sar.loader.batch import make_batch
from pyg_sar.loader.graph import build
from pyg_sar.loader.rounds import Round
from pyg_sar.loader.seeds import Asked
from pyg_sar.rows.from_data import as_local, check_not_local
from pyg_sar.shard.format import EdgeKey
from pyg_sar.utils.rng import hashed
from pyg_sar.utils.scoped import on_cpu

ROUND = 12
"""Batches that ranks sample together: so many times fewer messages."""


class Epoch(NamedTuple):
    """The numbers from which all draws of an epoch follow."""

    number: int  # from 0 on
    draws: int  # of neighbours and negatives
    order: int | None  # of the seeds; None where they keep theirs


class Loader:
    """Mini-batches of a cut graph: an iterable.

    Attributes:
        data: The argument of this name.
        transform: The argument of this name.
        batch_size: Seeds of all ranks in a batch.
        drop_last: The argument of this name.
    """

    def __init__(
        self,
        typed: Data | HeteroData,
        num_neighbors: Any,
        of_seeds: dict[str, Any],
        read_seeds: Callable[..., Asked],
        given: LoaderOptions,
    ) -> None:
        """Reads the arguments (collective); `read_seeds` those of seeds."""
        self._name = type(self).__name__
        with in_call(self._name), torch.inference_mode(False), on_cpu():

            def read() -> tuple[Options, dict[EdgeKey, tuple[int, ...]]]:
                check_not_local(self._name, typed)
                options = read_options(self._name, given)
                check_data(as_local(typed), world_size(), self._name)
                return options, fans_of(num_neighbors, list(edge_stores(typed)))

            options, fans = raise_on_all(read)
            data = own_data(typed)
            same = {name: value for name, value in vars(options).items() if name != 'transform'}
            same['num_neighbors'] = list(fans.items())
            kinds = {name: None if v is None else type(v).__name__ for name, v in of_seeds.items()}
            _check_alike({**same, **kinds})
            same_seeds, make_seeds = raise_on_all(lambda: read_seeds(typed, options, **of_seeds))
            _check_alike(same_seeds)
            graph = build(data, find(data), options)
            seeds = make_seeds(graph)
            rest = 0 if options.drop_last else options.batch_size - 1
            self._num_batches = (seeds.total + rest) // options.batch_size
            if not self._num_batches:
                raise ValueError(
                    f"'{next(iter(same_seeds))}' must give a batch of {options.batch_size} seeds "
                    f'(got {seeds.total} seeds, with drop_last={options.drop_last})'
                )
            self._identity = {**same, **same_seeds, 'num_batches': self._num_batches}
            self._graph, self._fans, self._seeds = graph, fans, seeds
            self._options, self._data, self.transform = options, typed, options.transform
            self.data = typed
            self.batch_size, self.drop_last = options.batch_size, options.drop_last
            self._epoch, self._at, self._is_loaded = Epoch(-1, 0, None), 0, False

    def __len__(self) -> int:
        return self._num_batches

    @property
    def dataset(self) -> range:
        """A number for every seed of all ranks, for ``len(loader.dataset)``."""
        return range(self._seeds.total)

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Begins an epoch, or goes on with one that was loaded (collective)."""
        with in_call(self._name), on_cpu():
            epoch, at = (self._epoch, self._at) if self._is_loaded else (self._next_epoch(), 0)
            data, unchanged = own_data(self._data), Unchanged(self._data)
            attributes = find(data)
            answers = agree(((epoch.number, at), self._at, tuple(epoch)))
            check_equal('epoch and batch', [start for start, _, _ in answers])
            check_equal('number of batches taken before', [taken for _, taken, _ in answers])
            epoch = Epoch(*answers[0][2])  # a rank may have drawn other numbers
            self._epoch, self._at, self._is_loaded = epoch, at, False
        batches = self._batches(data, attributes, epoch, at)
        return self._iterate(batches, unchanged, epoch, at)

    def _iterate(
        self, batches: Iterator[Data | HeteroData], unchanged: Unchanged, epoch: Epoch, at: int
    ) -> Iterator[Data | HeteroData]:
        for _ in range(at, self._num_batches):
            if self._epoch is not epoch:
                raise ValueError('expected the newest iteration of this loader (got an older one)')
            try:
                with in_call(self._name), on_cpu():
                    unchanged.check()
                    batch = next(batches)
            except Exception as error:
                left_by(error)
                raise
            self._at += 1
            yield batch if self.transform is None else self.transform(batch)

    def _batches(
        self, data: Data | HeteroData, attributes: AttributeRows, epoch: Epoch, at: int
    ) -> Iterator[Data | HeteroData]:
        """Batches of an epoch from one on (collective at the first of every round)."""
        graph, order = self._graph, self._seeds.order(epoch.order)
        of_round = ROUND if graph.world_size > 1 else 1
        for first in range(at, self._num_batches, of_round):
            vote(f'sampling batch {first} of epoch {epoch.number}')
            asked = range(first, min(first + of_round, self._num_batches))
            seeds = self._seeds.of_batches(order, epoch.draws, asked)
            sampled = Round(graph, attributes, self._fans, self._options, seeds)
            for number in range(len(asked)):
                yield make_batch(data, sampled, number)
            del sampled

    def _next_epoch(self) -> Epoch:
        """The numbers of an epoch; without a seed torch's DataLoader draws them so."""
        number = self._epoch.number + 1
        seed, shuffle = self._options.seed, self._options.shuffle
        if seed is None:
            draws, order = _drawn(), _drawn() if shuffle else None
        else:
            draws, order = hashed(seed, number, torch.arange(2)).tolist()
        return Epoch(number, draws, order if shuffle else None)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: so many batches of its epoch have been taken.

        Equal on all ranks, and for any number of ranks.
        """
        number, draws, order = self._epoch
        epoch = {'epoch': number, 'draws': draws, 'order': order}
        return {**epoch, 'batch': self._at, **self._identity}

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
        self._epoch = Epoch(state['epoch'], state['draws'], state['order'])
        self._at = state['batch']
        self._is_loaded = self._epoch.number >= 0 and self._at < len(self)

    def __repr__(self) -> str:
        return f'{self._name}()'


def _check_alike(values: dict[str, Any]) -> None:
    """Raises a ValueError on all ranks, if one has others (collective)."""
    answers = agree(values)
    for name in values:
        check_equal(f"'{name}'", [answer[name] for answer in answers])


def _drawn() -> int:
    """A number from torch's generator."""
    return int(torch.empty((), dtype=torch.int64).random_())
