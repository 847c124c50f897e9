"""Plain tensors and numbers beside rows, which are equal on all ranks.

What meets rows is noted, and compared by the next message.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from pyg_sar.comm.errors import warn
from pyg_sar.comm.ranks import cache_of, check_lives, chosen, current, rank
from pyg_sar.comm.ranks import world_size as num_ranks
from pyg_sar.comm.vote import vote
from pyg_sar.rows.registry import bare_name, is_in_place, name_of
from pyg_sar.utils.dry_run import is_hidden
from pyg_sar.utils.nested import leaves
from pyg_sar.utils.offload import array_of
from pyg_sar.utils.tensor_state import as_bytes, version_of

LARGE = 2**24
"""A function of rows and a plain tensor with so many numbers warns."""

PLAIN = (Tensor, torch.nn.Parameter)


def check_whole(func: Any, tensor: Tensor) -> None:
    """Raises a ValueError if a plain tensor with the rows of the whole differs between the ranks.

    Collective: one small all-gather, once for a tensor that is not written to.
    """
    if num_ranks() == 1:
        return
    version, checked = version_of(tensor), cache_of('checked')
    if checked.get(tensor) == version:
        return
    if tensor.numel() >= LARGE:
        warn(
            f'a plain tensor of shape {tuple(tensor.shape)} meets rows: it is held whole on every '
            'rank; torch.zeros_like(x) and x.new_zeros(n) are not'
        )
    digest = zlib.crc32(array_of(as_bytes(tensor.cpu())).data) if tensor.numel() else 0
    fingerprint = f'{tuple(tensor.shape)}: {digest}'
    if vote('a comparison of plain tensors', fingerprint=fingerprint) is None:
        name = getattr(func, '__name__', str(func))
        raise ValueError(
            f"'{name}' of rows and a plain tensor of shape {tuple(tensor.shape)}, which differs "
            'between the ranks: a plain tensor is one of the whole graph, equal on all ranks; draw '
            'it with one seed on all of them; in a loop over batches of a loader take batch.x and '
            'its other attributes'
        )
    checked[tensor] = version


@contextmanager
def own_draws(device: torch.device, generator: torch.Generator | None = None) -> Iterator[None]:
    """Random numbers of own rows, which leave the generator as it is on all other ranks.

    Every rank takes one number of the generator, torch's own of `device` if it is None, and draws
    by a seed made of it and its rank. So what is drawn later for the whole graph is equal on all
    ranks.
    """
    if num_ranks() == 1:
        yield
        return
    generator = generator or _generator(device)
    seed = int(torch.randint(2**62, (), device=device, generator=generator))
    state = generator.get_state()
    generator.manual_seed((seed + 0x9E3779B97F4A7C15 * (rank() + 1)) % 2**63)
    try:
        yield
    finally:
        generator.set_state(state)


def _generator(device: torch.device) -> torch.Generator:
    if device.type == 'cuda':
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator


_MOST = 2**14
"""Numbers of a tensor that is compared; larger ones with the rows of the whole are, too."""

_AT_ONCE = 2**10
"""Numbers that are read at every call; a tensor with more only when something was written to it."""

_ARRAYS = (Tensor, np.ndarray, np.generic)
_NUMBERS = (bool, int, float, complex, str, *_ARRAYS[1:])

_OF_THIS_RANK = ('requires_grad', 'retain_grad', 'grad', 'to', 'cuda')
"""Functions and attributes that say what a rank wants to know of its rows, and where they lie."""

_BY_IDS = ('getitem', 'index_select', 'take', 'gather', 'take_along_dim')
"""Functions that read places of a table, see :func:`note_table`."""


def note(func: Any, args: Any, kwargs: Any) -> None:
    """Takes note of the numbers and plain tensors that a function of rows, or a conv, takes.

    Raises:
        RuntimeError: If the ranks that have the rows are no more.
    """
    values, found, comm = [*args, *(kwargs or {}).values()], [], None
    lives = is_there = False
    for value in values:  # grows
        kind = type(value)
        if kind is Tensor or (kind is torch.nn.Parameter and not value.requires_grad):
            found.append(value)
        elif kind in (list, tuple):
            values.extend(value)
        elif kind is slice:
            values.extend((value.start, value.stop, value.step))
        elif isinstance(value, _NUMBERS):
            found.append(value)
        elif not lives and hasattr(value, '_sharding'):
            comm, world, lives = value._sharding.comm, dist.group.WORLD, True
            is_there = comm is not None and world is not None and comm.world() is world
            if not is_there and name_of(func) != 'shape':
                check_lives(comm)
    if kwargs and 'out' in kwargs:
        written = {id(value) for value in leaves(kwargs['out'])}
        found = [value for value in found if id(value) not in written]
    if not found or is_hidden.value or torch._C._are_functorch_transforms_active():
        return
    name = bare_name(func)
    if values[0] is found[0] and (name in _BY_IDS or is_in_place(name_of(func))):
        del found[0]
    if name in _OF_THIS_RANK:
        return
    found = [_compared(v, name) if isinstance(v, _ARRAYS) else v for v in found]
    found = [value for value in found if value is not None]
    if found:
        here: Any = comm if is_there and chosen.value is None else current()
        here.met.note(name, found)


def note_alike(name: str, value: Tensor) -> None:
    """Takes note of a plain tensor that is equal on all ranks, as :func:`note` does."""
    found = None if is_hidden.value else _compared(value, name)
    if found is not None:
        current().met.note(name, [found])


def note_once(leaf: Tensor) -> None:
    """Takes note of a leaf that learns and is of no model, when it first meets rows."""
    seen = cache_of('met')
    if leaf not in seen and 0 < leaf.numel() <= LARGE and not is_hidden.value:
        seen[leaf] = version_of(leaf)
        current().met.note('Parameter', [leaf.detach().cpu()])


def note_table(
    func: Any, table: Tensor, read: Callable[[Tensor], Tensor], dims: int | None = None
) -> None:
    """Takes note of a plain table that rows read, as :func:`note` does; called in ``plainly``.

    `read` gives what is read of a tensor of its shape, or of its first `dims` dimensions. Other
    places may hold anything, as those of ``torch.empty``.
    """
    count, is_learned = table.numel(), table.requires_grad and isinstance(table, torch.nn.Parameter)
    if is_hidden.value or is_learned or not 0 < count <= _MOST or table.is_meta:
        return
    shape = table.shape[:dims]
    places = torch.arange(prod(shape), device=table.device).view(shape)
    is_read = torch.zeros_like(places, dtype=torch.bool)
    is_read.view(-1)[read(places).reshape(-1)] = True
    is_read = is_read.view(*shape, *[1] * (table.dim() - len(shape)))
    met, name = current().met, bare_name(func)
    if table.device.type == 'cpu':
        met.note(name, [table.detach()], is_read=is_read)
    else:
        met.note_later(name, table, is_read)


def _compared(value: Any, name: str) -> Any:
    """What of an array the next message compares, or None: it has before, need not, or waits."""
    if not isinstance(value, Tensor):
        return str(value.tolist()) if value.size <= _MOST else None
    count = value.numel()
    if not 0 < count <= _MOST or value.layout != torch.strided or value.is_meta:
        return None
    is_on_host = value.device.type == 'cpu'
    if is_on_host and count <= _AT_ONCE:
        return value
    version, seen = version_of(value), cache_of('met')
    if seen.get(value) == version:
        return None
    seen[value] = version
    if is_on_host:
        return value.detach()
    current().met.note_later(name, value)
    return None
