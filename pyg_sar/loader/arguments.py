"""Reads the arguments of a loader, or refuses them with a reason."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from pyg_sar.shard.file_names import EdgeKey, type_name
from pyg_sar.utils.log import say

_logger = logging.getLogger(__name__)

_IGNORED = {
    'num_workers',
    'persistent_workers',
    'prefetch_factor',
    'worker_init_fn',
    'multiprocessing_context',
    'timeout',
    'in_order',
    'pin_memory',
    'pin_memory_device',
    'filter_per_worker',
    'is_sorted',
}
"""Arguments of PyG and torch that change no batch."""

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
class Fans:
    """How in-edges are drawn."""

    num_neighbors: dict[EdgeKey, tuple[int, ...]]  # of every relation, by hop; -1 for all
    replace: bool  # whether with replacement
    is_last: bool  # whether the latest are taken
    subgraph_type: str  # as PyG's: 'induced' has all edges between the nodes of a batch
    disjoint: bool  # whether every seed has a tree of its own

    @property
    def num_hops(self) -> int:
        """The number of hops from the seeds."""
        return len(next(iter(self.num_neighbors.values())))


def read_others(loader: str, others: Mapping[str, Any], args: dict[str, Any]) -> None:
    """Puts what PyG's other arguments say into `args`; logs which of them change nothing.

    Raises a TypeError for one that would change batches, and for unknown names.
    """
    for name, value in others.items():
        if name == 'directed':  # of PyG before 2.4
            args['subgraph_type'] = args['subgraph_type'] if value else 'induced'
        elif name == 'neg_sampling_ratio' and 'neg_sampling' in args:
            if value and args['neg_sampling'] is not None:
                raise TypeError(f"'{name}' and 'neg_sampling' cannot both be given (got {value})")
            args['neg_sampling'] = args['neg_sampling'] or (
                {'mode': 'binary', 'amount': value} if value else None
            )
        elif name in _REFUSED and value is not None:
            raise TypeError(f"'{name}' has no meaning here: {_REFUSED[name]}")
        elif name not in _IGNORED and name not in _REFUSED:
            raise TypeError(f"{loader} has no argument '{name}'")
    ignored = [name for name, value in others.items() if name in _IGNORED and value]
    if ignored:
        names = ', '.join(ignored)
        say(_logger, logging.INFO, f'{loader} makes batches in the loop: {names} change nothing')


def check_kinds(values: Mapping[str, Any]) -> None:
    """Raises a ValueError for options that are not of their kind."""
    for name in ('replace', 'disjoint', 'shuffle', 'drop_last'):
        if type(values[name]) is not bool:
            raise ValueError(f"'{name}' must be True or False (got {values[name]!r})")
    for name, least in (('batch_size', 1), ('seed', -(2**63))):
        value = values[name]
        if name == 'seed' and value is None:
            continue
        if type(value) is not int or not least <= value < 2**63:
            raise ValueError(f"'{name}' must be an int of at least {least} (got {value!r})")
    for name, choices in (
        ('subgraph_type', tuple(kind.value for kind in SubgraphType)),
        ('temporal_strategy', ('uniform', 'last')),
    ):
        if values[name] not in choices:
            raise ValueError(f"'{name}' must be one of {choices} (got {values[name]!r})")
    if values['transform'] is not None and not callable(values['transform']):
        raise ValueError(f"'transform' must be a function (got {values['transform']!r})")
    has_time, is_last = values['time_attr'] is not None, values['temporal_strategy'] == 'last'
    if is_last and not has_time:
        raise ValueError("temporal_strategy='last' needs a 'time_attr' (got None)")
    if is_last and (values['replace'] or values['weight_attr'] is not None):
        raise ValueError(
            "temporal_strategy='last' draws nothing, so it takes neither replace=True nor a "
            f"'weight_attr' (got {values['replace']} and {values['weight_attr']!r})"
        )


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
