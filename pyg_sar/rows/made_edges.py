"""Edges that a program makes of ids: every rank gets those into its own nodes, and their halo.

Ids of edges are numbers, 16 bytes an edge, which every rank has for a moment. What travels along
the edges afterwards is the halo of each rank, as with edges that were loaded.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.derive_shard import derive_shard
from pyg_sar.comm.ranks import cache_of
from pyg_sar.comm.rows_by_id import owners_of
from pyg_sar.comm.vote import agree
from pyg_sar.rows.edges import EdgeIndex, Ends, edge_index
from pyg_sar.rows.over_ranks import all_rows
from pyg_sar.rows.replicated import check_whole
from pyg_sar.rows.rows import Rows, plain, plainly, refuse
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.shard import Shard
from pyg_sar.utils.tensor_state import version_of


def edges_of(
    func: Any, ids: Tensor, src: Sharding, dst: Sharding, key: Tensor | None = None
) -> Any:
    """Edges by ids of the whole, int64 ``[2, E]``, equal on all ranks (collective).

    They are kept with `ids`, or with the tensor `key`, until the program writes to it.
    """
    key = ids if key is None else key
    if not (src.has_ids() and dst.has_ids()):
        refuse(func, f'is not known where the nodes lie ({src!r}, {dst!r})')
    state = version_of(key), src, dst
    cache = cache_of('edges')
    old_state, edges = cache.get(key, (None, None))
    if old_state != state:
        check_whole(func, ids)
        with plainly():
            edges = _dealt(ids.detach(), src, dst)
        cache[key] = state, edges
    return edges


def _dealt(ids: Tensor, src: Sharding, dst: Sharding) -> EdgeIndex:
    if ids.dim() != 2 or ids.size(0) != 2:
        raise ValueError(f"expected an 'edge_index' of shape [2, E] (got {[*ids.shape]})")
    for row, sharding in zip(ids, (src, dst), strict=True):
        if not is_in(row, sharding):
            raise IndexError(f'expected ids from 0 to {sharding.total - 1} in an edge_index')
    to = dst.local_index(ids[1])
    is_own = to >= 0
    part_ptr = [0, *accumulate(agree(src.own))]
    owner, row = owners_of(ids[0][is_own], src.ids(ids.device), 'edge_index')
    positions = torch.tensor(part_ptr, device=ids.device)[owner] + row
    rows = None if src is dst else dst.own
    handle, order = derive_shard(
        _base(src.comm), part_ptr, positions, to[is_own], name='made', dst_rows=rows
    )
    which = is_own.nonzero().view(-1)[order]
    sharding = Sharding(which.numel(), what='edges', ids=which, total=ids.size(1), nodes=(dst, src))
    return edge_index(handle, sharding, Ends(handle.shard, src, dst))


def _base(comm: Comm) -> Shard:
    """A shard of no edges, one part a rank."""
    ranks, none = comm.size, (0,) * (comm.size + 1)
    return Shard('', 'program', comm.rank, ranks, ranks, 0, (0, 0), none, none, ())


def is_in(ids: Tensor, sharding: Sharding) -> bool:
    """Whether these are ids of its rows."""
    return not ids.numel() or bool(0 <= int(ids.min()) <= int(ids.max()) < sharding.total)


def whole_ids(edges: Any) -> Tensor:
    """The ids of edges, of whichever kind, as a plain tensor with all of them."""
    return all_rows(edges) if isinstance(edges, Rows) else plain(edges)


def with_edges_of_ids(conv: Any, names: list[str], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments of a conv, with plain ids of edges between its rows as edges."""
    named = dict(zip(names, args, strict=False)) | kwargs
    ids, x = named.get('edge_index'), next(iter(named.values()), None)
    first, *rest = x if isinstance(x, (tuple, list)) else (x, x)
    if type(ids) is not Tensor and type(ids) is not Rows:
        return args, kwargs
    if ids.dim() != 2 or ids.dtype != torch.int64 or not isinstance(first, Rows):
        return args, kwargs
    if len(rest) != 1 or not isinstance(rest[0], Rows):
        return args, kwargs
    edges = edges_of(conv, whole_ids(ids), first._sharding, rest[0]._sharding)
    out = [edges if arg is ids else arg for arg in args]
    return out, {key: edges if value is ids else value for key, value in kwargs.items()}
