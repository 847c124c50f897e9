"""Reductions: along other dimensions they run here, over the rows over all ranks.

Softmax over the rows, norms along any dimension and covariances are made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import align, argument, as_rows, dim_of, dims_of, named_rule
from pyg_sar.rows.one_loss import for_rows, has_fractions, sum_of_ranks, widened
from pyg_sar.rows.over_ranks import largest_of_ranks, on_all_rows
from pyg_sar.rows.pointwise import pointwise
from pyg_sar.rows.registry import bare_name, rule, rule_of
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import not_empty, over_rows, own_results
from pyg_sar.utils.nested import in_nested

_POSITIONS = {
    **dict.fromkeys(['norm', 'linalg_vector_norm'], ('p', 'dim', 'keepdim')),
    **dict.fromkeys(['std', 'var', 'std_mean', 'var_mean'], ('dim', 'unbiased', 'keepdim')),
    **dict.fromkeys(['quantile', 'nanquantile'], ('q', 'dim', 'keepdim')),
    'kthvalue': ('k', 'dim', 'keepdim'),
}
"""Names of the arguments after the rows, where these are not dim and keepdim."""


@rule(
    'sum mean amax amin max min std var norm linalg_vector_norm any all nansum nanmean logsumexp '
    'count_nonzero argmax argmin median prod std_mean var_mean mode nanmedian quantile '
    'nanquantile kthvalue is_all_true is_any_true'
)
def _reduction(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare_name(func).removeprefix('is_').removesuffix('_true')  # _is_all_true
    rows = args[0] if args else kwargs.get('input')
    named = dict(zip(_POSITIONS.get(name, ('dim', 'keepdim')), args[1:], strict=False)) | kwargs
    if name in ('max', 'min') and any(isinstance(named.get(n), Tensor) for n in ('dim', 'other')):
        return pointwise(func, args, kwargs)
    if not isinstance(rows, Rows):
        refuse(func)
    if any(isinstance(arg, Rows) and arg is not rows for arg in (*args, *kwargs.values())):
        refuse(func, 'by other rows is not known to be right')
    if isinstance(named.get('dim'), bool):  # x.std(False)
        named['unbiased'] = named.pop('dim')
    with plainly():
        num_dims = rows.dim()
        dim, keepdim = named.get('dim'), named.get('keepdim') is True
        dims = [dim % num_dims] if type(dim) is int else dims_of(dim, num_dims)
        if dims is not None and rows._dim not in dims:
            dim = rows._dim - (0 if keepdim else sum(i < rows._dim for i in dims))
            dim += isinstance(named.get('q'), Tensor) and named['q'].dim() > 0
            own: Tensor = rows if rows._sharding.own else not_empty(plain(rows), rows._dim)
            others = [for_rows(v) for v in args[1:]]
            results = func(own, *others, **kwargs)
            if isinstance(results, Tensor) and rows._sharding.own:
                return tag(results, dim, rows._sharding)
            return in_nested(results, lambda result: own_results(result, dim, rows._sharding))
        by = by_place if name in ('max', 'min') and dims is not None else _OVER_ROWS
        over = by.get(name) or by_place[name]
        values = plain(rows).to(named['dtype']) if named.get('dtype') else plain(rows)
        every = list(range(num_dims)) if dims is None else dims
        call = Reduction(func, name, rows, values, every, keepdim, named, (args, kwargs))
        is_wide = values.dtype == widened(values.dtype)
        if (is_wide and has_fractions(values)) or name == 'kthvalue':
            return over(call)
        few = values.new_zeros([2] * num_dims)
        args, kwargs = in_nested((args, kwargs), lambda arg: few if arg is rows else arg)
        of_torch = func(*args, **kwargs)  # or the error that it has for whole numbers
        return over(call) if is_wide else _rounded(over(call), of_torch)  # also by autocast


def _rounded(result: Any, like: Any) -> Any:
    if isinstance(result, Tensor):
        return result.to(like.dtype)
    return type(result)([_rounded(*pair) for pair in zip(result, like, strict=True)])


@dataclass
class Reduction:
    """A reduction over the rows and perhaps other dimensions."""

    func: Any
    name: str
    rows: Rows
    values: Tensor  # the own ones
    dims: list[int]
    keepdim: bool
    named: dict[str, Any]  # the arguments after the rows, by name
    arguments: tuple[Any, Any]  # args and kwargs as they are

    @property
    def count(self) -> int:
        """How many numbers go into one result, of all ranks."""
        others = math.prod(self.values.size(i) for i in self.dims if i != self.rows._dim)
        return self.rows._sharding.total * others

    def sum(self, values: Tensor, *, keepdim: bool | None = None) -> Tensor:
        """The sum of `values` over all ranks; of half precision as float32."""
        keepdim = self.keepdim if keepdim is None else keepdim
        wide = widened(values.dtype) if values.is_floating_point() else None
        return sum_of_ranks(values.sum(self.dims, keepdim=keepdim, dtype=wide))

    def largest(self, values: Tensor, *, least: bool = False, keepdim: bool = False) -> Tensor:
        """The largest of `values` over all ranks; an error where there are none, as in torch."""
        if self.count == 0:
            raise RuntimeError(f'{self.name}(): expected at least one row on all ranks together')
        keepdim, nan_is_top = keepdim or self.keepdim, self.name in ('max', 'min')
        return largest_of_ranks(
            values, self.dims, keepdim=keepdim, least=least, nan_is_top=nan_is_top
        )


def _mean(over: Reduction) -> Tensor:
    return over.sum(over.values) / over.count


def _nanmean(over: Reduction) -> Tensor:
    return _nansum(over) / over.sum(~over.values.isnan())


def _nansum(over: Reduction) -> Tensor:
    return over.sum(torch.where(over.values.isnan(), 0, over.values))


def _moments(over: Reduction) -> Any:
    correction = over.named.get('correction', 0 if over.named.get('unbiased') is False else 1)
    mean = over.sum(over.values, keepdim=True) / over.count
    squares = over.sum((over.values - mean.detach()).abs().square())  # by the mean it is 0
    spread = squares / max(over.count - (1 if correction is None else correction), 0)
    if over.name.startswith('std'):
        spread = _root(spread)
    if not over.name.endswith('_mean'):
        return spread
    return spread, mean if over.keepdim else mean.squeeze(over.dims)


def _root(total: Tensor, p: float = 2) -> Tensor:
    """The root of 0 has the gradient 0, as torch has it of norms and deviations."""
    is_zero = total == 0
    root = torch.where(is_zero, 1, total)
    return torch.where(is_zero, 0, root.sqrt() if p == 2 else root.pow(1 / p))


def _norm(over: Reduction) -> Tensor:
    p = over.named.get('p', over.named.get('ord', 2))
    p = 2 if p in (None, 'fro') else p
    if not isinstance(p, (int, float)):
        return on_all_rows(over.func, *over.arguments[0], **over.arguments[1])
    if over.name == 'norm' and over.named.get('dim') and len(over.dims) > 2 and p != 2:
        refuse(over.func, 'over more than two dimensions is not known to be right')
    size = over.values.abs()
    size = size.to(widened(size.dtype))
    if abs(p) == math.inf:
        return over.largest(size, least=p < 0)
    if p == 0:
        return over.sum((size != 0).to(size.dtype))
    if p == 1:
        return over.sum(size)
    total = over.sum(size.square() if p == 2 else size.pow(p))
    return _root(total, p) if p > 0 else total.pow(1 / p)


def _logsumexp(over: Reduction) -> Tensor:
    values = over.values.to(widened(over.values.dtype))
    top = over.largest(values.detach(), keepdim=True) if over.count else values.new_zeros(())
    top = torch.where(top.abs() == math.inf, 0, top)
    total = over.sum((values - top).exp(), keepdim=True).log() + top
    return total if over.keepdim else total.squeeze(over.dims)


_OVER_ROWS: dict[str, Callable[[Reduction], Any]] = {
    'sum': lambda over: over.sum(over.values),
    'mean': _mean,
    'nansum': _nansum,
    'nanmean': _nanmean,
    'any': lambda over: over.sum(over.values.bool()) > 0,
    'all': lambda over: over.sum(over.values.logical_not()) == 0,
    'count_nonzero': lambda over: over.sum(over.values != 0, keepdim=False),
    **dict.fromkeys(['amax', 'max'], lambda over: over.largest(over.values)),
    **dict.fromkeys(['amin', 'min'], lambda over: over.largest(over.values, least=True)),
    **dict.fromkeys(['var', 'std', 'var_mean', 'std_mean'], _moments),
    **dict.fromkeys(['norm', 'linalg_vector_norm'], _norm),
    'logsumexp': _logsumexp,
}
"""Reductions over the rows of all ranks."""

by_place: dict[str, Callable[[Reduction], Any]] = {}
"""Reductions that give places in the whole, or need all rows; :mod:`.places` fills it."""


def _softmax(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    name = bare_name(func)
    position = 3 if getattr(func, '__module__', '') == 'torch.nn.functional' else 2
    dtype = argument(args, kwargs, position, 'dtype')
    values = plain(rows) if dtype is None else plain(rows).to(dtype)
    if not has_fractions(values):
        func(values.new_zeros([1] * values.dim()), *args[1:], **kwargs)  # has an error for these
    if name == 'softmin':
        values = -values
    logs = log_softmax_over_rows(values, rows._dim)
    result = logs if name == 'log_softmax' else logs.exp()
    if result.dtype != values.dtype:  # autocast has a say
        none = plain(rows)[:0]
        args, kwargs = in_nested((args, kwargs), lambda arg: none if arg is rows else arg)
        result = result.to(func(*args, **kwargs).dtype)
    return tag(result, rows._dim, rows._sharding)


def log_softmax_over_rows(values: Tensor, dim: int) -> Tensor:
    """The log-softmax along `dim`, of the rows of all ranks; of half precision as float32."""
    wide = values.to(widened(values.dtype))
    top = largest_of_ranks(wide.detach(), [dim], keepdim=True, least=False)
    shifted = wide - torch.where(top.isinf(), 0, top)
    return shifted - for_rows(sum_of_ranks(shifted.exp().sum(dim, keepdim=True)).log())


for _name in ('softmax', 'log_softmax', 'softmin'):
    over_rows[_name] = _softmax


@named_rule('normalize')
def _normalize(func: Any, input: Rows, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)


@named_rule('cosine_similarity')
def _cosine_similarity(func: Any, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    (x, y), _, right, sharding = align(func, (x1, x2), {})
    num_dims = max(dim_of(x), dim_of(y))
    from_right = num_dims - dim % num_dims
    with plainly():
        if from_right != right:
            out = torch.cosine_similarity(x, y, dim, eps)
            return as_rows(out, right - (from_right < right), sharding)
        few = torch.cosine_similarity(x.new_zeros([1]), y.new_zeros([1]), 0, eps)
        x, y = (plain(tensor).to(widened(tensor.dtype)) for tensor in (x, y))
        products = x * y
        x, y = (tensor.expand_as(products) for tensor in (x, y))
        sums = torch.stack([products, x * x, y * y]).sum(dim % num_dims + 1)
        dot, *squares = sum_of_ranks(sums)
        floor = eps * eps
        cosine: Tensor = dot / (squares[0].clamp_min(floor) * squares[1].clamp_min(floor)).sqrt()
        return cosine.to(few.dtype)


@named_rule('pairwise_distance')
def _pairwise_distance(
    func: Any, x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Any:
    return (x1 - x2 + eps).norm(p, -1, keepdim=keepdim)


@named_rule('cov')
def _covariance(
    func: Any, input: Rows, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    """The rows are what is observed, in the last dimension."""
    if input._dim != dim_of(input) - 1 or fweights is not None or aweights is not None:
        refuse(func, 'is known where the rows are observations without weights')
    with plainly():
        values, total = plain(input), input._sharding.total
        if not (values.is_floating_point() or values.is_complex()):
            values = values.to(torch.get_default_dtype())
        wide = values.unsqueeze(0) if values.dim() == 1 else values
        mean = sum_of_ranks(wide.sum(1, keepdim=True, dtype=widened(wide.dtype))) / total
        centred = wide - mean.detach()  # by the mean the gradient is 0
        out = sum_of_ranks(centred @ centred.mH) / max(total - correction, 0)
        return out.to(values.dtype).squeeze()


@rule('linalg_norm')
def _norm_of_any(func: Any, args: Any, kwargs: Any) -> Any:
    """Of vectors or matrices, by the number of dimensions."""
    named = dict(zip(('input', 'ord', 'dim', 'keepdim'), args, strict=False)) | kwargs
    rows = named.pop('A', None) if 'A' in named else named.pop('input')
    kind, dim = named.pop('ord', None), named.pop('dim', None)
    if not isinstance(rows, Rows):
        refuse(func)
    num_dims = len(dim) if isinstance(dim, (tuple, list)) else 1
    if dim is None:
        num_dims = 1 if kind is None else dim_of(rows)
    if num_dims == 1 or kind is None:
        return torch.linalg.vector_norm(rows, 2 if kind is None else kind, dim, **named)
    return torch.linalg.matrix_norm(rows, kind, (0, 1) if dim is None else dim, **named)


def _over_matrices(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Over both dimensions; the Frobenius norm is that of one vector of all numbers."""
    if argument(args, kwargs, 1, 'ord', default='fro') != 'fro':
        return on_all_rows(func, *args, **kwargs)
    dims = argument(args, kwargs, 2, 'dim', default=(-2, -1))
    keepdim = argument(args, kwargs, 3, 'keepdim', default=False)
    norm, dtype = torch.linalg.vector_norm, kwargs.get('dtype')
    return rule_of(norm)(norm, (rows, 2, dims, keepdim), {'dtype': dtype} if dtype else {})


over_rows['linalg_matrix_norm'] = _over_matrices
