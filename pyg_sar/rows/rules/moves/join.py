"""Rows side by side, or rows after rows of another space."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import agree
from pyg_sar.rows.align import align, argument, as_rows, dim_of
from pyg_sar.rows.edges import EdgeIndex, edge_index
from pyg_sar.rows.registry import rule
from pyg_sar.rows.replicated import check_whole, met
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.space import Space


@rule('cat concat concatenate hstack vstack row_stack dstack column_stack')
def _cat(func: Any, args: Any, kwargs: Any) -> Any:
    """Side by side, or rows after rows of another space."""
    parts = list(argument(args, kwargs, 0, 'tensors'))
    name = func.__name__
    dim = argument(args, kwargs, 1, 'dim', 'axis', default=0)
    if name not in ('cat', 'concat', 'concatenate'):
        parts, dim = _stacked_parts(func, name, parts)
    parts = [each for each in parts if dim_of(each) != 1 or isinstance(each, Rows) or each.numel()]
    first = next(each for each in parts if isinstance(each, Rows))
    dim %= dim_of(first)
    if isinstance(first, EdgeIndex):
        return _more_edges(func, parts, dim)
    if dim != first._dim:
        (parts,), _, right, space = align(func, (parts,), {})
        parts = [_widened(part, right, space) for part in parts]
        with plainly():
            return as_rows(torch.cat([plain(each) for each in parts], dim), right, space)
    spaces, own = [], []
    for part in parts:
        if isinstance(part, Rows):
            if part._dim != dim:
                refuse(func, 'in two dimensions would pair every row with every row')
            spaces.append(part._space)
            own.append(plain(part))
            continue
        space = first._space.dealt(part.size(dim))
        check_whole(func, part)
        with plainly():
            own.append(met(part).index_select(dim, space.ids(part.device)))
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
        if any(dim_of(each) == 0 for each in parts):
            refuse(func, 'of single numbers is not known to be right')
        return [each.unsqueeze(1) if dim_of(each) == 1 else each for each in parts], 1
    if name in ('vstack', 'row_stack') and num_dims > 1:
        return parts, 0
    if name == 'dstack' and num_dims > 2:
        return parts, 2
    refuse(func, 'of so few dimensions is not known to be right: use stack or cat')


def _more_edges(func: Any, parts: list[Any], dim: int) -> Any:
    """Edges and more edges: of the same nodes, or plain ones, as self loops are added.

    With ids that were computed, as of negative edges, these are pairs of ids and no edges.
    """
    first = next(each for each in parts if isinstance(each, EdgeIndex))
    ends, flipped = first.ends, first.handle.is_flipped
    computed = any(isinstance(each, Rows) and not isinstance(each, EdgeIndex) for each in parts)
    if dim != 1 or parts[0] is not first or computed:
        return torch.cat(
            [each.whole_ids if isinstance(each, EdgeIndex) else each for each in parts], dim
        )
    handles: list[Any] = []
    spaces: list[Space] = []
    for part in parts:
        if isinstance(part, EdgeIndex):
            if part.ends is not ends or part.handle.is_flipped != flipped:
                refuse(func, 'of two graphs is not known to be right')
            handles.append(part.handle)
            spaces.append(part._space)
            continue
        check_whole(func, part)
        space = _dealt_edges(part.flip(0) if flipped else part, first)
        own = part[:, space.ids(part.device)]
        src, dst = own.flip(0) if flipped else own
        places = ends.src.places(src), ends.dst.places(dst)
        if not all(agree(all(bool((each >= 0).all()) for each in places))):
            refuse(func, 'and of edges between any nodes is known for self loops only')
        local = torch.stack(places)
        handles.append(local.flip(0) if flipped else local)
        spaces.append(space)
    joined = torch.cat(handles, dim=1)
    return edge_index(joined, spaces[0].joined(tuple(spaces[1:])), ends)


def _dealt_edges(part: Tensor, edges: EdgeIndex) -> Space:
    """Where new edges go: one for each node to the nodes, any others to their destinations."""
    space, count = edges._space.dealt(part.size(1)), part.size(1)
    if space is edges.ends.dst or count == 0:
        return space
    is_own = edges.ends.dst.places(part[1]) >= 0
    ids = is_own.nonzero().view(-1)
    return Space(ids.numel(), what='new edges', ids=ids, total=count)
