"""Softmax over the rows of all ranks, and norms along any dimension, made of reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import align, argument, as_rows, dim_of, named_rule
from pyg_sar.rows.over_ranks import has_fractions, largest_of_ranks, sum_of_ranks, widened
from pyg_sar.rows.registry import bare_name
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.rowwise import over_rows
from pyg_sar.utils.nested import in_nested


def _softmax(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    name = bare_name(func).removeprefix('special_')
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
    return tag(result, rows._dim, rows._space)


def log_softmax_over_rows(values: Tensor, dim: int) -> Tensor:
    """The log-softmax along `dim`, of the rows of all ranks; of half precision as float32."""
    wide = values.to(widened(values.dtype))
    top = largest_of_ranks(wide.detach(), [dim], keepdim=True, least=False)
    shifted = wide - torch.where(top.isinf(), 0, top)
    return shifted - sum_of_ranks(shifted.exp().sum(dim, keepdim=True)).log()


for _name in ('softmax', 'log_softmax', 'softmin', 'special_softmax', 'special_log_softmax'):
    over_rows[_name] = _softmax


@named_rule('normalize')
def _normalize(func: Any, input: Rows, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    return input / input.norm(p, dim, keepdim=True).clamp_min(eps)


@named_rule('cosine_similarity')
def _cosine_similarity(func: Any, x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    (x, y), _, right, space = align(func, (x1, x2), {})
    num_dims = max(dim_of(x), dim_of(y))
    from_right = num_dims - dim % num_dims
    with plainly():
        if from_right != right:
            out = torch.cosine_similarity(x, y, dim, eps)
            return as_rows(out, right - (from_right < right), space)
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
