"""This rank's share of lists and tensors that all ranks hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import own_rows
from pyg_sar.rows.from_data import as_local, space_of_nodes
from pyg_sar.rows.sharding import Space
from pyg_sar.utils.rng import hashed


def nodes_of(store: Any) -> tuple[Tensor, Space]:
    """Ids of the own nodes of a type, on the CPU, and of whose nodes they are."""
    n_id = as_local(store['n_id']).cpu()
    whole = Space(n_id.numel(), what='nodes', ids=n_id, total=n_id.numel())  # of one process
    return n_id, space_of_nodes(store) or whole


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


def own_values(name: str, value: Any, space: Space) -> Tensor:
    """The own rows of an argument with a row for every seed, on the CPU (collective).

    Raises ValueError, if it has not as many.
    """
    values = torch.as_tensor(value)
    if not values.dim() or values.size(0) != space.total:
        raise ValueError(
            f"'{name}' must have a row for each of {space.total} seeds, in their order (got shape "
            f'{tuple(values.shape)}): write {name}=values[ids] for the seeds that ids select'
        )
    return own_rows(name, values, 0, space).detach().cpu()


def own_times(name: str, value: Any, space: Space) -> Tensor:
    """As :func:`own_values`, of an argument with a number for every seed."""
    time = own_values(name, value, space)
    if time.dim() > 1 or time.is_complex() or bool(time.isnan().any()):
        raise ValueError(
            f"'{name}' must have a number for each of {space.total} seeds, not NaN (got "
            f'{time.dtype} {tuple(time.shape)})'
        )
    return time
