"""Rows side by side, or rows after rows of another space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.vote import agree
from pyg_sar.rows.align import align, argument, as_rows, dim_of
from pyg_sar.rows.edges import EdgeIndex, edge_index
from pyg_sar.rows.made_edges import edges_of, is_in, whole_ids
from pyg_sar.rows.registry import BROADCAST, rule
from pyg_sar.rows.replicated import check_whole, with_mean_gradient
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Space


@rule('cat concat concatenate hstack vstack row_stack dstack column_stack')
def _cat(func: Any, args: Any, kwargs: Any) -> Any:
    """Side by side, or rows after rows of another space."""
    parts = list(argument(args, kwargs, 0, 'tensors'))
    name = func.__name__
    dim = argument(args, kwargs, 1, 'dim', 'axis', default=0)
    if name not in ('cat', 'concat', 'concatenate'):
        parts, dim = _stacked_parts(func, name, parts)
    parts = [part for part in parts if dim_of(part) != 1 or isinstance(part, Rows) or part.numel()]
    first = next(part for part in parts if isinstance(part, Rows))
    dim %= dim_of(first)
    if isinstance(first, EdgeIndex):
        return _more_edges(func, parts, dim)
    if dim != first._dim:
        (parts,), _, right, space = align(func, (parts,), {})
        parts = [_widened(part, right, space) for part in parts]
        with plainly():
            return as_rows(torch.cat([plain(part) for part in parts], dim), right, space)
    spaces, own = [], []
    for part in parts:
        if isinstance(part, Rows):
            if part._dim != dim:
                refuse(func, *BROADCAST)
            spaces.append(part._space)
            own.append(plain(part))
            continue
        space = first._space.dealt(part.size(dim))
        check_whole(func, part)
        with plainly():
            own.append(with_mean_gradient(part).index_select(dim, space.ids(part.device)))
        spaces.append(space)
    with plainly():
        return tag(torch.cat(own, dim), dim, spaces[0].joined(tuple(spaces[1:])))


def _widened(part: Tensor, right: int, space: Space) -> Tensor:
    """A plain tensor with one row, with as many as there are own rows."""
    if isinstance(part, Rows):
        return part
    with plainly():
        shape = list(part.shape)
        if shape[-right] == 1:
            shape[-right] = space.own
        return part.expand(shape)


def _stacked_parts(func: Any, name: str, parts: list[Tensor]) -> tuple[list[Tensor], int]:
    num_dims = dim_of(parts[0])
    if name == 'hstack':
        return parts, 0 if num_dims == 1 else 1
    if name == 'column_stack':
        if any(dim_of(part) == 0 for part in parts):
            refuse(func, 'of single numbers is not known to be right')
        return [part.unsqueeze(1) if dim_of(part) == 1 else part for part in parts], 1
    if name in ('vstack', 'row_stack') and num_dims > 1:
        return parts, 0
    if name == 'dstack' and num_dims > 2:
        return parts, 2
    refuse(func, 'of so few dimensions is not known to be right', 'use stack or cat')


def _more_edges(func: Any, parts: list[Any], dim: int) -> Any:
    """Edges and more edges: of the same nodes, self loops, or any ids of nodes."""
    first = next(part for part in parts if isinstance(part, EdgeIndex))
    # Negative edges stay on the ranks that drew them: pairs of ids, and no edges.
    rows = [part for part in parts if isinstance(part, Rows) and not isinstance(part, EdgeIndex)]
    is_drawn = any(not tensor._space.has_ids() for tensor in rows)
    if dim != 1 or (is_drawn and not isinstance(parts[-1], EdgeIndex)):
        return torch.cat(
            [part.whole_ids if isinstance(part, EdgeIndex) else part for part in parts], dim
        )
    pairs = [_local(func, part, first) for part in parts if parts[0] is first]
    local = [pair for pair in pairs if pair is not None]
    if len(local) < len(parts):
        return _between_any_nodes(func, parts, first)
    ids, spaces = zip(*local, strict=True)
    joined = first.handle.with_ids(torch.cat(ids, dim=1))
    return edge_index(joined, spaces[0].joined(spaces[1:]), first.ends)


def _local(func: Any, part: Any, first: EdgeIndex) -> tuple[Tensor, Space] | None:
    """Edges in ids of the rank, if it owns their ends as it owns those of the first edges."""
    ends, flipped = first.ends, first.handle.is_flipped
    if isinstance(part, EdgeIndex):
        is_like = part.ends is ends and part.handle.is_flipped == flipped
        return (part.handle.ids, part._space) if is_like else None
    if isinstance(part, Rows):
        return None
    space = first._space.dealt(part.size(1))
    check_whole(func, part)
    own = part[:, space.ids(part.device)]
    src, dst = own.flip(0) if flipped else own
    if not all(agree(is_in(src, ends.src) and is_in(dst, ends.dst))):
        return None
    local = torch.stack([ends.src.places(src), ends.dst.places(dst)])
    if not all(agree(bool((local >= 0).all()))):
        return None
    return local.flip(0) if flipped else local, space


def _between_any_nodes(func: Any, parts: list[Any], first: EdgeIndex) -> Any:
    """Edges of their own; ids that are of no node stay plain."""
    ids = torch.cat([whole_ids(part) for part in parts], dim=1)
    src, dst = first.ends.src, first.ends.dst
    if first.handle.is_flipped:
        src, dst = dst, src
    if is_in(ids[0], src) and is_in(ids[1], dst):
        return edges_of(func, ids, src, dst)
    return ids
