"""``NeighborLoader``: PyG's mini-batches, sampled from the graph of all ranks.

What is drawn follows from ids of the whole graph and from a seed, and batches belong to parts. So
batches do not depend on how many ranks there are, nor on who samples when.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import SubgraphType

from pyg_sar.comm import (
    agree,
    check_equal,
    in_call,
    open_lane,
    raise_together,
    takes_turns,
    world_size,
)
from pyg_sar.sampling.ahead import Ahead, Here
from pyg_sar.sampling.arguments import cache_bytes, check_kinds, check_names, fans_of, seeds_of
from pyg_sar.sampling.attributes import EdgeKey, NodeKey, check_data, edge_stores, find
from pyg_sar.sampling.cache import choose_rows, fill, is_fresh
from pyg_sar.sampling.graph import build
from pyg_sar.sampling.rounds import Fans
from pyg_sar.sampling.sampler import Sampler
from pyg_sar.sampling.seeds import Inputs, read_inputs

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


class NeighborLoader:
    """Mini-batches of a cut graph, each with its sampled neighbourhood: an iterable, as PyG's.

    A batch is what ``torch_geometric.loader.NeighborLoader`` gives: a ``Data`` or ``HeteroData`` on
    a plain ``edge_index``, with all attributes of the sampled nodes and edges, the seeds first.

    ===========================  =================================================================
    ``x``, ``y``, ...            of every sampled node; what is of neither nodes nor edges as it is
    ``edge_attr``, ...           of every sampled edge
    ``edge_index``               int64 ``[2, num_edges]``, in the batch's own numbers
    ``n_id``, ``e_id``           ids in the whole graph, int64
    ``input_id``                 places of the seeds in `input_nodes`; own rows where that is a mask
    ``batch_size``               number of seeds: of all parts of this rank together
    ``num_sampled_nodes``        how many each hop added, for ``trim_to_layer``; and
                                 ``num_sampled_edges``
    ``batch``, ``seed_time``     if `disjoint`: the seed of every node, and the seeds' times
    ===========================  =================================================================

    ::

        loader = pyg_sar.NeighborLoader(
            data, [10, 5], data.train_mask, batch_size=64, shuffle=True, seed=0
        )
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            each = F.cross_entropy(out, batch.y[: batch.batch_size], reduction='none')
            loss = pyg_sar.global_mean(each)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    Batches belong to parts: batch i of a rank holds those of its parts side by side, and nothing is
    shared between them. So 8 parts have the same batches on 1, 2, 4 and 8 ranks. All ranks have
    ``len(loader)`` batches; those whose seeds are used up get batches without seeds. Ranks take as
    many batches as each other, or with ``prefetch=0`` at least the same rounds of 8.

    Every ``iter(loader)`` is the next epoch. It is collective (two small all-gathers), and so is
    making a loader. Sampling takes ``4 * hops`` collectives for 8 batches.

    Args:
        data: That of :func:`pyg_sar.load_shard`.
        num_neighbors: How many in-edges of a node to draw, by hop; -1 for all. A dict by relation
            gives each its own.
        input_nodes: The seeds: a mask of the own nodes, bool ``[num_own]``, or rows of them; None
            for all. Of a HeteroData ``'paper'`` or ``('paper', mask)``.
        input_time: Times of the seeds, in the order of `input_nodes`; None for those of the nodes.
        replace: Whether an edge may be drawn again.
        subgraph_type: ``'directional'``: the edges that were drawn. ``'bidirectional'``: with their
            reverse. ``'induced'``: all edges between the nodes of a batch.
        disjoint: Whether every seed has a tree of its own. Always so with times.
        temporal_strategy: ``'uniform'`` draws among the edges that are there by the time of the
            seed, ``'last'`` takes the latest of them.
        time_attr: The attribute of nodes or edges that holds their times.
        weight_attr: The attribute of edges by which they are drawn, finite and at least 0. An edge
            of weight 0 is not drawn, but by -1.
        transform: Applied to every batch, by the thread of the program.
        batch_size: Seeds of a part in a batch.
        shuffle: Whether every epoch takes the seeds in another random order.
        drop_last: Whether a last batch of a part with fewer seeds is left out.
        seed: Of all random numbers; the same on all ranks.
        cache: Bytes on each rank, or ``'2GB'``, for the rows of other ranks that batches read most.
            They are fetched once, and again when an attribute has changed between epochs.
        prefetch: How many batches are made ahead, by a thread. 0: none, without a thread. Ranks
            that are threads of one process have no other one.

    Raises:
        TypeError: For an argument of PyG's that has no meaning here.
        ValueError: On all ranks, if an argument is wrong on one, or they differ.
    """

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: Any,
        input_nodes: Any = None,
        input_time: Tensor | None = None,
        replace: bool = False,
        subgraph_type: Literal['directional', 'bidirectional', 'induced'] = 'directional',
        disjoint: bool = False,
        temporal_strategy: Literal['uniform', 'last'] = 'uniform',
        time_attr: str | None = None,
        weight_attr: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        cache: int | str | None = None,
        prefetch: int = 2,
        **others: Any,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ('self', 'others')}
        with in_call('NeighborLoader'), torch.inference_mode(False), torch.device('cpu'):
            self._make(given, others)

    def _make(self, given: dict[str, Any], others: dict[str, Any]) -> None:
        if isinstance(given['subgraph_type'], SubgraphType):
            given['subgraph_type'] = given['subgraph_type'].value
        data, error = given['data'], None
        fans: dict[EdgeKey, tuple[int, ...]] = {}
        seeds: tuple[NodeKey, Tensor, Tensor] | None = None
        try:
            check_names(others)
            check_kinds(given)
            given['cache'] = cache_bytes(given['cache'])
            check_data(data, world_size())
            fans = fans_of(given['num_neighbors'], list(edge_stores(data)))
            seeds = seeds_of(data, given['input_nodes'])
        except (TypeError, ValueError) as failure:
            error = failure
        raise_together(error)
        assert seeds is not None
        same = {name: given[name] for name in _ALIKE}
        same['num_neighbors'] = list(fans.items())
        same['input_nodes'], same['input_time'] = seeds[0], given['input_time'] is not None
        answers = agree(same)
        for name, own in same.items():
            check_equal(f"'{name}'", own, [each[name] for each in answers])
        is_timed = given['time_attr'] is not None
        disjoint, is_last = given['disjoint'] or is_timed, given['temporal_strategy'] == 'last'
        kind, replace = given['subgraph_type'], given['replace']
        names = given['time_attr'], given['weight_attr']
        found = find(data)
        graph = build(data, found, *names, replace=replace)
        inputs = read_inputs(graph, seeds, given['input_time'], is_timed=is_timed)
        self._inputs = Inputs(
            *inputs, given['batch_size'], disjoint, given['seed'], given['shuffle']
        )
        counts = agree((seeds[1].numel(), self._inputs.num_batches(given['drop_last'])))
        self._num_batches: int = max(count for _, count in counts)
        if not self._num_batches:
            num_seeds, size = sum(num for num, _ in counts), given['batch_size']
            raise ValueError(
                f"'input_nodes' must give a batch of {size} seeds in some part (got {num_seeds} "
                f'seeds on all ranks, with drop_last={given["drop_last"]})'
            )
        of_speed = ('cache', 'prefetch')  # the batches are the same
        self._identity = {k: v for k, v in same.items() if k not in of_speed}
        self._identity['num_batches'] = self._num_batches
        fan = Fans(fans, replace, is_last, kind == 'induced', disjoint)
        self._sampler = Sampler(data, graph, fan, self._inputs, kind)
        if given['cache'] is not None and graph.world_size > 1:
            size = given['cache']
            self._sampler.kept = choose_rows(graph, found, fan, self._inputs, size)
        self._transform = given['transform']
        self._prefetch = 0 if takes_turns() else given['prefetch']
        self._lane = open_lane() if self._prefetch else None
        if self._lane is not None:
            weakref.finalize(self._sampler, self._lane.close).atexit = False
        self._epoch, self._at, self._is_loaded = -1, 0, False
        self._source: Ahead | Here | None = None
        self._iteration: Callable[[], _Iteration | None] = lambda: None

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Data | HeteroData]:
        """Begins an epoch, or goes on with one that was loaded (collective)."""
        with in_call('NeighborLoader'), torch.device('cpu'):
            if self._source is not None:
                self._source.leave()
                self._source.join()
                self._source = None
            epoch, at = (self._epoch, self._at) if self._is_loaded else (self._epoch + 1, 0)
            attributes, kept = find(self._sampler.data), self._sampler.kept
            answers = agree(((epoch, at), kept is None or is_fresh(kept, attributes)))
            check_equal('epoch and batch', (epoch, at), [place for place, _ in answers])
            if kept is not None and not all(fresh for _, fresh in answers):
                fill(kept, self._sampler.graph, attributes)
            self._epoch, self._at, self._is_loaded = epoch, at, False

            def make(is_wanted: Callable[[], bool]) -> Iterator[Data | HeteroData]:
                return sampler.batches(attributes, epoch, range(at, end), is_wanted)

            sampler, end = self._sampler, self._num_batches
            self._source = Ahead(make, self._prefetch, self._lane) if self._prefetch else Here(make)
        iteration = _Iteration(self, self._source)
        self._iteration = weakref.ref(iteration)
        return iteration

    def _next(self, iteration: _Iteration, source: Ahead | Here) -> Data | HeteroData:
        if self._iteration() is not iteration:
            raise ValueError('expected the newest iteration of this loader (got an older one)')
        batch = source.next()
        self._at += 1
        return batch if self._transform is None else self._transform(batch)

    @property
    def hit_rate(self) -> float:
        """Of the rows of other ranks that batches have read, the share that was in the cache."""
        kept = self._sampler.kept
        return kept.num_found / max(kept.num_read, 1) if kept is not None else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: so many batches of its epoch have been taken.

        The same on all ranks, and for any number of ranks.
        """
        return {'epoch': self._epoch, 'batch': self._at, **self._identity}

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
        self._is_loaded = self._epoch >= 0 and self._at < len(self)
        self._iteration = lambda: None

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'


class _Iteration(Iterator[Any]):
    """The batches of an epoch; when the last reference to it goes, its loop has been left."""

    def __init__(self, loader: NeighborLoader, source: Ahead | Here) -> None:
        self._loader, self._source = loader, source

    def __next__(self) -> Data | HeteroData:
        return self._loader._next(self, self._source)

    def __del__(self) -> None:
        self._source.leave()
