"""Reads the arguments of a loader, or refuses them with a reason.

Seeds, their times and weights are lists and tensors that all ranks hold; a rank takes its share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from pyg_sar.comm.collectives import all_reduce_sum
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.from_data import as_local, sharding_of_nodes
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.format import EdgeKey, type_name
from pyg_sar.utils.log import say
from pyg_sar.utils.rng import hashed

_logger = logging.getLogger(__name__)


class IgnoredOptions(TypedDict, total=False):
    """Arguments of PyG and torch that change no batch."""

    num_workers: int
    persistent_workers: bool
    prefetch_factor: int | None
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    timeout: float
    in_order: bool
    pin_memory: bool
    pin_memory_device: str
    filter_per_worker: bool | None
    is_sorted: bool


class LoaderOptions(IgnoredOptions, total=False):
    """The names of :class:`Options`, for type checkers and editors."""

    replace: bool
    subgraph_type: SubgraphType | Literal['directional', 'bidirectional', 'induced']
    disjoint: bool
    temporal_strategy: Literal['uniform', 'last']
    time_attr: str | None
    weight_attr: str | None
    transform: Callable[[Any], Any] | None
    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int | None


_ORDER = "batches are of the seeds in their order, or in one drawn by 'seed'"
_REFUSED = {
    'generator': "draws follow from 'seed', or from torch's own generator",
    'sampler': _ORDER,
    'batch_sampler': _ORDER,
    'collate_fn': "a batch is made here (use 'transform')",
    'transform_sampler_output': "batches of all ranks' rows are made in one go (use 'transform')",
    'custom_cls': "'data' says what a batch is",
    'dataset': 'seeds are an argument of their own',
    'input_id': 'it is the place of every seed in what is given',
    'neighbor_sampler': 'other ranks draw as well',
}
"""Arguments of PyG and torch that would change batches, and why they cannot."""


@dataclass(frozen=True)
class Options:
    """What loaders of nodes and of links take alike; see :class:`pyg_sar.NeighborLoader`.

    Raises ValueError for values that are not of their kind.
    """

    replace: bool = False
    subgraph_type: str = 'directional'
    disjoint: bool = False
    temporal_strategy: str = 'uniform'
    time_attr: str | None = None
    weight_attr: str | None = None
    transform: Callable[[Any], Any] | None = None
    batch_size: int = 1
    shuffle: bool = False
    drop_last: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ('replace', 'disjoint', 'shuffle', 'drop_last'):
            self._check(name, type(getattr(self, name)) is bool, 'True or False')
        self._check('batch_size', _is_int(self.batch_size, 1), 'an int of at least 1')
        is_seed = self.seed is None or _is_int(self.seed, -(2**63))
        self._check('seed', is_seed, f'an int of at least {-(2**63)}')
        kinds = tuple(kind.value for kind in SubgraphType)
        self._check('subgraph_type', self.subgraph_type in kinds, f'one of {kinds}')
        strategies = ('uniform', 'last')
        is_one = self.temporal_strategy in strategies
        self._check('temporal_strategy', is_one, f'one of {strategies}')
        self._check('transform', self.transform is None or callable(self.transform), 'a function')
        if self.is_last and self.time_attr is None:
            raise ValueError("temporal_strategy='last' needs a 'time_attr' (got None)")
        if self.is_last and (self.replace or self.weight_attr is not None):
            raise ValueError(
                "temporal_strategy='last' draws nothing, so it takes neither replace=True nor a "
                f"'weight_attr' (got {self.replace} and {self.weight_attr!r})"
            )

    def _check(self, name: str, is_right: bool, kind: str) -> None:
        if not is_right:
            raise ValueError(f"'{name}' must be {kind} (got {getattr(self, name)!r})")

    @property
    def is_last(self) -> bool:
        """Whether the latest edges are taken."""
        return self.temporal_strategy == 'last'

    @property
    def has_trees(self) -> bool:
        """Whether every seed has a tree of its own."""
        return self.disjoint or self.time_attr is not None


def _is_int(value: object, least: int) -> bool:
    return type(value) is int and least <= value < 2**63


def read_options(loader: str, given: Mapping[str, Any]) -> Options:
    """The options of a loader; logs which of PyG's change nothing.

    Raises a TypeError for one that would change batches, and for unknown names.
    """
    own: dict[str, Any] = {}
    names, ignored = [field.name for field in fields(Options)], [*IgnoredOptions.__annotations__]
    for name, value in given.items():
        if name in names:
            own[name] = value.value if isinstance(value, SubgraphType) else value
        elif name == 'directed':  # of PyG before 2.4
            own |= {} if value else {'subgraph_type': 'induced'}
        elif name in _REFUSED and value is not None:
            raise TypeError(f"'{name}' has no meaning here: {_REFUSED[name]}")
        elif name not in ignored and name not in _REFUSED:
            raise TypeError(f"{loader} has no argument '{name}'")
    words = ', '.join(name for name in ignored if given.get(name))
    if words:
        say(_logger, logging.INFO, f'{loader} makes batches in the loop: {words} change nothing')
    return Options(**own)


def fans_of(num_neighbors: Any, relations: list[EdgeKey]) -> dict[EdgeKey, tuple[int, ...]]:
    """The fan-outs of every relation, by hop."""
    default = None
    if isinstance(num_neighbors, NumNeighbors):
        num_neighbors, default = num_neighbors.values, num_neighbors.default
    if isinstance(num_neighbors, Mapping):
        by_name = {type_name(key): key for key in relations if key is not None}
        named = {type_name(key): hops for key, hops in num_neighbors.items()}
        for name in named:
            if name not in by_name:
                raise ValueError(
                    f"'num_neighbors' must be of relations of the graph, {list(by_name.values())} "
                    f"(got one of '{name}')"
                )
        fans: dict[EdgeKey, Any] = {k: named.get(name, default) for name, k in by_name.items()}
        for key, hops in fans.items():
            if hops is None:
                raise ValueError(
                    f"'num_neighbors' must be given for every relation (none of {key})"
                )
    else:
        fans = dict.fromkeys(relations, num_neighbors)
    out: dict[EdgeKey, tuple[int, ...]] = {}
    for key, hops in fans.items():
        if not isinstance(hops, (list, tuple)) or not all(type(k) is int and k >= -1 for k in hops):
            raise ValueError(
                f"'num_neighbors' must be a list of whole numbers, -1 for all (got {hops!r})"
            )
        out[key] = tuple(hops)
    if len({len(hops) for hops in out.values()}) > 1:
        raise ValueError(
            f"'num_neighbors' must have as many hops for every relation (got {list(out.values())})"
        )
    return out


def nodes_of(store: Any) -> tuple[Tensor, Sharding]:
    """Ids of the own nodes of a type, on the CPU, and of whose nodes they are."""
    n_id = as_local(store['n_id']).cpu()
    whole = Sharding(n_id.numel(), what='nodes', ids=n_id, total=n_id.numel())  # of one process
    return n_id, sharding_of_nodes(store) or whole


def own_of(ids: Tensor, n_id: Tensor) -> tuple[Tensor, Tensor]:
    """Own rows of the own nodes in a list, and their indices in the list, ascending.

    `n_id` are the ids of the own nodes.
    """
    own, order = n_id.sort()
    at = torch.searchsorted(own, ids.contiguous()).clamp(max=max(own.numel() - 1, 0))
    index = (own[at] == ids).nonzero().view(-1) if own.numel() else ids[:0]
    return order[at[index]], index


def check_ids(name: str, ids: Tensor, count: int) -> None:
    """Raises a ValueError for what is no id of `count` nodes."""
    wrong = ids[(ids < 0) | (ids >= count)]
    if wrong.numel():
        raise ValueError(f"'{name}' must be ids of the {count} nodes (got {int(wrong[0])})")


def of_all_ranks(ids: Tensor) -> str:
    """Words that differ where ranks hold different lists."""
    count = ids.size(-1)
    hashes = hashed(0, torch.arange(count), *(ids if ids.dim() > 1 else [ids]))
    return f'{count} of the whole graph, hash {int(hashes.sum()) % 2**32:x}'


def of_mask(ids: Tensor, total: int) -> str:
    """Words that differ for masks of other nodes; `ids` are the own chosen ones (collective)."""
    digest = all_reduce_sum(hashed(0, ids).sum().view(1), 'the hash of a mask')
    return f'a mask of {total}, hash {int(digest) % 2**32:x}'


def own_values(name: str, value: Any, sharding: Sharding) -> Tensor:
    """The own rows of an argument with a row for every seed, on the CPU (collective).

    Raises ValueError, if it has not as many.
    """
    values = torch.as_tensor(value)
    if not values.dim() or values.size(0) != sharding.total:
        raise ValueError(
            f"'{name}' must have a row for each of {sharding.total} seeds, in their order (got "
            f'shape {tuple(values.shape)}): write {name}=values[ids] for the seeds that ids select'
        )
    return own_rows(name, values, 0, sharding).detach().cpu()


def own_times(name: str, value: Any, sharding: Sharding) -> Tensor:
    """As :func:`own_values`, of an argument with a number for every seed."""
    time = own_values(name, value, sharding)
    if time.dim() > 1 or time.is_complex() or bool(time.isnan().any()):
        raise ValueError(
            f"'{name}' must have a number for each of {sharding.total} seeds, not NaN (got "
            f'{time.dtype} {tuple(time.shape)})'
        )
    return time
