"""Losses of rows: the loss of every row by torch's own kernel, then its sum or mean over all ranks.

A mean of losses of labels is the sum of all ranks by what torch divides by: the number, or the
weights, of the labels that are not ignored. These travel with the sum, in one all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm.ranks import world_size
from pyg_sar.rows.align import align, bound, dim_of, own_rows, rows_in
from pyg_sar.rows.layers import Items, Where, by_items
from pyg_sar.rows.one_loss import for_rows, sum_of_ranks
from pyg_sar.rows.over_ranks import on_all_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.rows import Rows, plainly, refuse, tag

_VECTORS, _NUMBERS = Items(0, 2), Items(0, 1)
_OF_VECTORS: dict[str, Where] = {
    'cosine_embedding_loss': {'input1': _VECTORS, 'input2': _VECTORS, 'target': _NUMBERS},
    'triplet_margin_loss': dict.fromkeys(['anchor', 'positive', 'negative'], _VECTORS),
    'multi_margin_loss': {'input': _VECTORS, 'target': _NUMBERS},
}
"""Losses of one vector each: what has rows."""

_DIVIDES_BY_WEIGHTS = frozenset(['mse_loss', 'l1_loss', 'huber_loss'])


def _bound(func: Any, args: Any, kwargs: Any) -> tuple[dict[str, Any], str]:
    """Arguments by name for the loss of every row, and the reduction that is asked for."""
    named = bound(func, args, kwargs)
    size_average, reduce = named.pop('size_average', None), named.pop('reduce', None)
    how = named['reduction']
    if size_average is not None or reduce is not None:
        how = 'none' if reduce is False else 'sum' if size_average is False else 'mean'
    named['reduction'] = 'none'
    return named, how


def _reduced(func: Any, out: Any, how: str) -> Any:
    if how not in ('none', 'sum', 'mean'):
        raise ValueError(f"{how} is not a valid value for 'reduction' of {name_of(func)}")
    return out if how == 'none' else getattr(out, how)()


@rule(
    'mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy '
    'binary_cross_entropy_with_logits kl_div soft_margin_loss hinge_embedding_loss '
    'poisson_nll_loss gaussian_nll_loss margin_ranking_loss'
)
def _of_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    """Losses of single numbers."""
    named, how = _bound(func, args, kwargs)
    weight, var = named.get('weight'), named.get('var')
    if isinstance(var, Tensor) and dim_of(var) == dim_of(named['input']) - 1:
        named['var'] = var.unsqueeze(-1)
    _, own, right, sharding = align(func, (), named)
    with plainly():
        out = func(**own)
        out = tag(out, out.dim() - right, sharding)
    if how == 'mean' and name_of(func) in _DIVIDES_BY_WEIGHTS and weight is not None:
        return out.sum() / weight.sum()
    if how == 'batchmean' and name_of(func) == 'kl_div':
        return out.sum() / out.size(0)
    return _reduced(func, out, how)


@rule(' '.join(_OF_VECTORS))
def _of_vectors(func: Any, args: Any, kwargs: Any) -> Any:
    named, how = _bound(func, args, kwargs)
    where, weight = _OF_VECTORS[name_of(func)], named.get('weight')
    if isinstance(weight, Tensor) and dim_of(weight) > 1:
        where = {**where, 'weight': _VECTORS}
    return _reduced(func, by_items(func, (), named, where), how)


@rule('cross_entropy nll_loss')
def _of_classes(func: Any, args: Any, kwargs: Any) -> Any:
    """The rows are items of the batch, or stand behind the classes."""
    named, how = _bound(func, args, kwargs)
    input_, target, weight = named['input'], named['target'], named['weight']
    rows = rows_in((input_, target))
    if not rows or isinstance(weight, Rows):
        refuse(func)
    num_dims = dim_of(input_)
    are_labels = dim_of(target) < num_dims
    dims = {tensor._dim + (tensor is target and are_labels and tensor._dim > 0) for tensor in rows}
    if len(dims) > 1:
        refuse(func, 'and labels of other rows has no meaning')
    sharding, dim = rows[0]._sharding, dims.pop()
    if num_dims < 2 or dim == 1:
        return on_all_rows(func, *args, **kwargs)
    at = dim - (dim > 1)  # in what has no classes
    named['input'] = own_rows(func, input_, dim, sharding)
    named['target'] = target = own_rows(func, target, at if are_labels else dim, sharding)
    with plainly():
        if weight is not None:
            named['weight'] = weight = for_rows(weight)
        if how == 'mean' and (are_labels or world_size() == 1):
            if world_size() == 1:
                return func(**named | {'reduction': 'mean'})
            # torch adds up half precision as float32, but gives a sum of it as half.
            named['reduction'] = 'none' if named['input'].element_size() == 2 else 'sum'
            losses = func(**named)
            wide = torch.promote_types(losses.dtype, torch.float32)
            count = _counted(target, weight, named['ignore_index'], wide).to(target.device)
            sums = sum_of_ranks(torch.stack([losses.sum(dtype=wide), count.to(wide)]))
            return (sums[0] / sums[1]).to(losses.dtype)
        out = tag(func(**named), at, sharding)
    return _reduced(func, out, how)


def _counted(target: Tensor, weight: Tensor | None, ignore_index: int, wide: torch.dtype) -> Tensor:
    """What torch divides by: the labels that are not ignored, or their weights."""
    counts = target != ignore_index
    if weight is None:
        return counts.sum()
    return weight.detach()[torch.where(counts, target, 0)].mul(counts).sum(dtype=wide)
