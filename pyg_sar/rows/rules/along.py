"""Functions along one dimension: beside the rows they run here, over them over all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm import agree
from pyg_sar.rows.align import align, argument, as_rows, dim_of, dims_of, found
from pyg_sar.rows.over_ranks import fetched, largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse, tag
from pyg_sar.rows.rules.pointwise import pointwise

_NEEDS_ALL = 'over the rows of all ranks needs all rows in one place'


@rule('softmax log_softmax softmin gumbel_softmax')
def _softmax(func: Any, args: Any, kwargs: Any) -> Any:
    name, rows = name_of(func), argument(args, kwargs, 0, 'input', 'logits')
    place = 4 if name == 'gumbel_softmax' else 1
    dim = argument(args, kwargs, place, 'dim', default=-1 if name == 'gumbel_softmax' else None)
    if dim is None:
        dim = 0 if dim_of(rows) in (0, 1, 3) else 1
    if dim % dim_of(rows) != rows._dim:
        with own_draws(rows.device), plainly():
            return tag(func(*args, **kwargs), rows._dim, rows._space)
    if name == 'gumbel_softmax':
        refuse(func, _NEEDS_ALL)
    dtype = argument(args, kwargs, 2, 'dtype') if name != 'softmin' else None
    with plainly():
        x = -plain(rows) if name == 'softmin' else plain(rows)
        x = x if not isinstance(dtype, torch.dtype) else x.to(dtype)
        top = largest_of_ranks(x.detach(), [rows._dim], keepdim=True, least=False)
        total = sum_of_ranks((x - top).exp().sum(rows._dim, keepdim=True))
        out = x - top - total.log() if name == 'log_softmax' else (x - top).exp() / total
        return tag(out, rows._dim, rows._space)


@rule('normalize')
def _normalize(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    p, eps = (
        argument(args, kwargs, 1, 'p', default=2.0),
        argument(args, kwargs, 3, 'eps', default=1e-12),
    )
    dim = argument(args, kwargs, 2, 'dim', default=1)
    if dim % dim_of(rows) != rows._dim:
        return pointwise(func, args, kwargs)
    return rows / rows.norm(p, dim, keepdim=True).clamp_min(eps)


_PLACE = {'topk': 2, 'roll': 2, 'cosine_similarity': 2, 'diff': 2, 'renorm': 2}
_DEFAULT = {'unbind': 0, 'cosine_similarity': 1, 'pairwise_distance': -1}


@rule(
    'sort argsort topk cumsum cumprod cummax cummin logcumsumexp flip roll diff glu '
    'cosine_similarity pairwise_distance gather take_along_dim tril triu renorm msort fliplr flipud'
)
def _along(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare(name_of(func))
    rows = found(args, kwargs)[0]
    dims = _dims(func, name, args, kwargs, dim_of(rows))
    if rows._dim in dims:
        if name in ('gather', 'take_along_dim'):
            return _gathered(func, args, kwargs)
        if dim_of(rows) > 1 or len(found(args, kwargs)) > 1:
            refuse(func, _NEEDS_ALL)
        with plainly():  # a vector is gathered: what comes of it is plain
            whole = fetched(rows, torch.arange(rows._space.total, device=rows.device))
            args, kwargs = in_nested((args, kwargs), lambda each: whole if each is rows else each)
            return func(*args, **kwargs)
    if name in ('gather', 'take_along_dim') and not isinstance(args[0], Rows):
        refuse(func, 'from a plain tensor: index it by rows')
    args, kwargs, right, space = align(func, args, kwargs)
    with plainly():
        out = func(*args, **kwargs)
        if name in ('cosine_similarity', 'pairwise_distance'):
            right -= dims[0] > dim_of(args[0]) - right
            if argument(args, kwargs, 4, 'keepdim', default=False):
                right += dims[0] > dim_of(args[0]) - right
        return as_rows(out, right, space)


def _dims(func: Any, name: str, args: Any, kwargs: Any, num_dims: int) -> list[int]:
    if name in ('tril', 'triu'):
        return [num_dims - 2, num_dims - 1]
    if name in ('msort', 'flipud'):
        return [0]
    if name == 'fliplr':
        return [1]
    given = argument(args, kwargs, _PLACE.get(name, 1), 'dim', 'dims', 'axis')
    if name == 'flip' and len(args) > 2:
        given = args[1:]
    if name == 'pairwise_distance':
        given = -1
    if (name == 'roll' and given is None) or (
        name == 'take_along_dim' and argument(args, kwargs, 2, 'dim') is None
    ):
        refuse(func, 'of all numbers as one')
    if name == 'take_along_dim':
        given = argument(args, kwargs, 2, 'dim')
    if name in ('sort', 'argsort') and isinstance(given, bool):
        given = None
    return (
        dims_of(_DEFAULT.get(name, -1) if given is None or given == () else given, num_dims) or []
    )


def _gathered(func: Any, args: Any, kwargs: Any) -> Any:
    """``x.gather(0, index)`` with an index of one column that is expanded is ``x[index[:, 0]]``."""
    refuse(func, 'over the rows is not known to be right: use x[index]')


@rule('bucketize searchsorted')
def _bucketize(func: Any, args: Any, kwargs: Any) -> Any:
    """Between bounds that are the same for all rows."""
    name = name_of(func)
    values, bounds = (0, 1) if name == 'bucketize' else (1, 0)
    rows = args[values]
    if not isinstance(rows, Rows) or isinstance(args[bounds], Rows) or dim_of(args[bounds]) != 1:
        refuse(func, 'takes rows and one list of bounds')
    with plainly():
        return tag(func(*args, **kwargs), rows._dim, rows._space)


@rule('pad')
def _pad(func: Any, args: Any, kwargs: Any) -> Any:
    """Beside the rows."""
    rows, sizes = args[0], argument(args, kwargs, 1, 'pad')
    if dim_of(rows) - 1 - rows._dim < len(sizes) // 2:
        refuse(func, _NEEDS_ALL)
    with plainly():
        return tag(func(*args, **kwargs), rows._dim, rows._space)


@rule('bincount')
def _bincount(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs, _, _ = align(func, args, kwargs)
    values = args[0]
    weights = argument(args, kwargs, 1, 'weights')
    least = argument(args, kwargs, 2, 'minlength', default=0)
    with plainly():
        size = max(least, *agree(int(values.max()) + 1 if values.numel() else 0))
        counts = torch.bincount(values, weights, size)
        if weights is not None and not values.numel():
            counts = counts.to(torch.float64 if weights.dtype != torch.float32 else counts.dtype)
        return sum_of_ranks(counts)


@rule('one_hot')
def _one_hot(func: Any, args: Any, kwargs: Any) -> Any:
    rows, size = args[0], argument(args, kwargs, 1, 'num_classes', default=-1)
    with plainly():
        if size < 0:
            size = max(agree(int(rows.max()) + 1 if rows.numel() else 0))
        return tag(F.one_hot(rows, size), rows._dim, rows._space)


@rule('unique _unique2 unique_dim')
def _unique(func: Any, args: Any, kwargs: Any) -> Any:
    """The values of all ranks, sorted."""
    rows = args[0]
    asked = [*args[1:], *kwargs.values()]
    if any(kwargs.get(n) for n in ('return_inverse', 'return_counts', 'dim')) or len(asked) > 1:
        refuse(func, 'with more than the values is not known to be right')
    with plainly():
        own = torch.unique(rows)
        every = torch.cat([each.to(own.device) for each in agree(own)])
        return torch.unique(every)


@rule('equal allclose')
def _equal(func: Any, args: Any, kwargs: Any) -> Any:
    args, kwargs, _, _ = align(func, args, kwargs)
    with plainly():
        return all(agree(bool(func(*args, **kwargs))))


@rule('cov corrcoef')
def _cov(func: Any, args: Any, kwargs: Any) -> Any:
    """Of variables as torch has them: a row each, so the rows of the graph are the columns."""
    rows = args[0]
    if dim_of(rows) != 2 or rows._dim != 1 or set(kwargs) - {'correction'} or len(args) > 1:
        refuse(func, _NEEDS_ALL)
    centred = rows - rows.mean(1, keepdim=True)
    count = rows._space.total - kwargs.get('correction', 1)
    cov: Tensor = centred @ centred.t() / count
    if name_of(func) == 'cov':
        return cov
    std = cov.diagonal().sqrt()
    return cov / std.unsqueeze(1) / std
