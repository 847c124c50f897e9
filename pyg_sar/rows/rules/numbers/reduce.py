"""Reductions: along other dimensions they run here, over the rows over all ranks."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, as_rows, dim_of, dims_of, found
from pyg_sar.rows.over_ranks import largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import all_of_plain
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse
from pyg_sar.rows.rules.numbers.pointwise import pointwise
from pyg_sar.rows.rules.numbers.without_rows import run

_DIM_PLACE = {
    'norm': 2,
    'kthvalue': 2,
    'quantile': 2,
    'nanquantile': 2,
    'linalg_vector_norm': 2,
}
"""Where the dimension stands among the arguments, if not second."""


@rule(
    'sum mean amax amin max min std var norm linalg_vector_norm any all nansum nanmean logsumexp '
    'count_nonzero argmax argmin median prod std_mean var_mean aminmax mode nanmedian quantile '
    'nanquantile kthvalue special_logsumexp'
)
def _reduction(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare(name_of(func)).removeprefix('special_')
    rows = args[0] if args else kwargs.get('input', kwargs.get('self'))
    if name in ('max', 'min') and isinstance(argument(args, kwargs, 1, 'other'), Tensor):
        return pointwise(func, args, kwargs)
    if not isinstance(rows, Rows) or kwargs.get('out') is not None:
        refuse(func)
    if len(found(args, kwargs)) > 1:
        refuse(func, 'by other rows is not known to be right')
    num_dims = dim_of(rows)
    dims = _dims(name, args, kwargs, num_dims)
    keepdim = _keeps(name, args, kwargs)
    if dims is not None and rows._dim not in dims:
        with plainly():
            dim = rows._dim - (0 if keepdim else sum(i < rows._dim for i in dims))
            if name in ('quantile', 'nanquantile') and _is_vector(argument(args, kwargs, 1, 'q')):
                dim += 1
            args = in_nested(args, all_of_plain)
            out = run(func, args, kwargs, num_dims - rows._dim, lambda out: out.dim() - dim)
            first = out if isinstance(out, Tensor) else out[0]
            return as_rows(out, first.dim() - dim, rows._space)
    over = _OVER_ROWS.get(name)
    if over is None or (name in ('max', 'min') and dims is not None):
        over = by_place.get(name)
    if over is None:
        refuse(func, 'over the rows of all ranks needs all rows in one place')
    with plainly():
        every = list(range(num_dims)) if dims is None else dims
        return over(_Over(func, name, rows, every, dims is None, keepdim, args, kwargs))


def _dims(name: str, args: Any, kwargs: Any, num_dims: int) -> list[int] | None:
    given = argument(args, kwargs, _DIM_PLACE.get(name, 1), 'dim', 'axis')
    return None if isinstance(given, bool) else dims_of(given, num_dims)


def _keeps(name: str, args: Any, kwargs: Any) -> bool:
    if 'keepdim' in kwargs:
        return bool(kwargs['keepdim'])
    place = _DIM_PLACE.get(name, 1) + 1
    if name in ('std', 'var', 'std_mean', 'var_mean'):  # (dim, unbiased, keepdim)
        place += 1
    return len(args) > place and args[place] is True


def _is_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


class _Over:
    """A reduction over the rows and perhaps other dimensions."""

    def __init__(
        self,
        func: Any,
        name: str,
        rows: Rows,
        dims: list[int],
        is_of_all: bool,
        keepdim: bool,
        args: Any,
        kwargs: Any,
    ) -> None:
        self.func, self.name, self.rows = func, name, rows
        self.dims, self.is_of_all, self.keepdim = dims, is_of_all, keepdim
        self.args, self.kwargs = args, kwargs
        self.values: Tensor = plain(rows)
        if kwargs.get('dtype') is not None:
            self.values = self.values.to(kwargs['dtype'])

    @property
    def count(self) -> int:
        """How many numbers go into one result, of all ranks."""
        others = math.prod(self.values.size(i) for i in self.dims if i != self.rows._dim)
        return self.rows._space.total * others

    def sum(self, values: Tensor | None = None, *, keepdim: bool | None = None) -> Tensor:
        """Over all ranks."""
        values = self.values if values is None else values
        keepdim = self.keepdim if keepdim is None else keepdim
        return sum_of_ranks(values.sum(self.dims, keepdim=keepdim))

    def largest(self, values: Tensor, *, least: bool = False) -> Tensor:
        """Over all ranks, in the dimensions that are asked for."""
        return largest_of_ranks(values, self.dims, keepdim=self.keepdim, least=least)

    def check_not_empty(self) -> None:
        """As torch, which has no largest of nothing."""
        if self.count == 0:
            raise RuntimeError(f'{self.name}(): expected at least one row on all ranks together')


def _sum(over: _Over) -> Tensor:
    return over.sum()


def _mean(over: _Over) -> Tensor:
    if not (over.values.is_floating_point() or over.values.is_complex()):
        raise RuntimeError(
            f'mean(): could not infer output dtype. Input dtype must be either a floating point or '
            f'complex dtype. Got: {over.values.dtype}'
        )
    return over.sum() / over.count


def _nansum(over: _Over) -> Tensor:
    return over.sum(torch.where(over.values.isnan(), 0, over.values))


def _nanmean(over: _Over) -> Tensor:
    return _nansum(over) / over.sum(~over.values.isnan())


def _any(over: _Over) -> Tensor:
    return over.sum(over.values.bool()) > 0


def _all(over: _Over) -> Tensor:
    return over.sum(over.values.logical_not()) == 0


def _count_nonzero(over: _Over) -> Tensor:
    return over.sum(over.values != 0, keepdim=False)


def _amax(over: _Over) -> Tensor:
    over.check_not_empty()
    return over.largest(over.values)


def _amin(over: _Over) -> Tensor:
    over.check_not_empty()
    return over.largest(over.values, least=True)


def _aminmax(over: _Over) -> Any:
    return torch.return_types.aminmax((_amin(over), _amax(over)))


def _moments(over: _Over) -> tuple[Tensor, Tensor]:
    unbiased = argument(over.args, over.kwargs, 2, 'unbiased')
    if len(over.args) > 1 and isinstance(over.args[1], bool):
        unbiased = over.args[1]
    correction = over.kwargs.get('correction', 0 if unbiased is False else 1)
    mean = over.sum(keepdim=True) / over.count
    squares = over.sum((over.values - mean).abs().square())
    left = max(over.count - (1 if correction is None else correction), 0)
    return squares / left, mean if over.keepdim else mean.squeeze(over.dims)


def _var(over: _Over) -> Tensor:
    return _moments(over)[0]


def _std(over: _Over) -> Tensor:
    return _root(_var(over))


def _var_mean(over: _Over) -> tuple[Tensor, Tensor]:
    return _moments(over)


def _std_mean(over: _Over) -> tuple[Tensor, Tensor]:
    var, mean = _moments(over)
    return _root(var), mean


def _root(total: Tensor, p: float = 2) -> Tensor:
    """The root of 0 has the gradient 0, as torch has it of norms and deviations."""
    is_zero = total == 0
    root = torch.where(is_zero, 1, total)
    return torch.where(is_zero, 0, root.sqrt() if p == 2 else root.pow(1 / p))


def _norm(over: _Over) -> Tensor:
    p = argument(over.args, over.kwargs, 1, 'p', 'ord', default=2)
    p = 2 if p in (None, 'fro') else p
    if not isinstance(p, (int, float)):
        refuse(over.func, f'of kind {p!r} is not known to be right')
    if over.name == 'norm' and not over.is_of_all and len(over.dims) > 2 and p != 2:
        refuse(over.func, 'over more than two dimensions is not known to be right')
    size = over.values.abs()
    if abs(p) == math.inf:
        over.check_not_empty()
        return over.largest(size, least=p < 0)
    if p == 0:
        return over.sum((size != 0).to(size.dtype))
    if p == 1:
        return over.sum(size)
    total = over.sum(size.square() if p == 2 else size.pow(p))
    return _root(total, p) if p > 0 else total.pow(1 / p)


def _logsumexp(over: _Over) -> Tensor:
    over.check_not_empty()
    top = largest_of_ranks(over.values.detach(), over.dims, keepdim=True, least=False)
    top = torch.where(top.abs() == math.inf, 0, top)
    total = over.sum((over.values - top).exp(), keepdim=True).log() + top
    return total if over.keepdim else total.squeeze(over.dims)


_OVER_ROWS = {
    'sum': _sum,
    'mean': _mean,
    'nansum': _nansum,
    'nanmean': _nanmean,
    'any': _any,
    'all': _all,
    'count_nonzero': _count_nonzero,
    'amax': _amax,
    'amin': _amin,
    'max': _amax,
    'min': _amin,
    'aminmax': _aminmax,
    'var': _var,
    'std': _std,
    'var_mean': _var_mean,
    'std_mean': _std_mean,
    'norm': _norm,
    'linalg_vector_norm': _norm,
    'logsumexp': _logsumexp,
}
"""Reductions over the rows of all ranks."""

by_place: dict[str, Any] = {}
"""Those that tell places in the whole, or need all rows in one; see :mod:`.places`."""
