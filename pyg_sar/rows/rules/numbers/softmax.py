"""Softmax over the rows of all ranks, and norms along any dimension, made of reductions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import align, argument, as_rows, dim_of
from pyg_sar.rows.over_ranks import largest_of_ranks, sum_of_ranks
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.along import over_rows


def _softmax(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    name = bare(name_of(func)).removeprefix('special_')
    place = 3 if getattr(func, '__module__', '') == 'torch.nn.functional' else 2
    dtype = argument(args, kwargs, place, 'dtype')
    values = plain(rows) if dtype is None else plain(rows).to(dtype)
    if name == 'softmin':
        values = -values
    logs = log_softmax_over_rows(values, rows._dim)
    return tag(logs if name == 'log_softmax' else logs.exp(), rows._dim, rows._space)


def log_softmax_over_rows(values: Tensor, dim: int) -> Tensor:
    """Of own rows in dimension `dim` with those of all ranks (collective)."""
    top = largest_of_ranks(values.detach(), [dim], keepdim=True, least=False)
    shifted = values - torch.where(top.isinf(), 0, top)
    return shifted - sum_of_ranks(shifted.exp().sum(dim, keepdim=True)).log()


def _gumbel_softmax(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    tau = argument(args, kwargs, 1, 'tau', default=1)
    if argument(args, kwargs, 2, 'hard', default=False):
        refuse(func, "over the rows of all ranks with 'hard' is not known to be right")
    values = plain(rows)
    with own_draws(values.device):
        noise = -torch.empty_like(values).exponential_().log()
    logs = log_softmax_over_rows((values + noise) / tau, rows._dim)
    return tag(logs.exp(), rows._dim, rows._space)


over_rows.update(
    dict.fromkeys(
        ['softmax', 'log_softmax', 'softmin', 'special_softmax', 'special_log_softmax'], _softmax
    )
)
over_rows['gumbel_softmax'] = _gumbel_softmax


@rule('normalize')
def _normalize(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input')
    if not isinstance(rows, Rows) or kwargs.get('out') is not None:
        refuse(func)
    p = argument(args, kwargs, 1, 'p', default=2.0)
    dim = argument(args, kwargs, 2, 'dim', default=1)
    eps = argument(args, kwargs, 3, 'eps', default=1e-12)
    return rows / rows.norm(p, dim, keepdim=True).clamp_min(eps)


@rule('cosine_similarity')
def _cosine_similarity(func: Any, args: Any, kwargs: Any) -> Any:
    first, second = (argument(args, kwargs, i, f'x{i + 1}') for i in (0, 1))
    dim = argument(args, kwargs, 2, 'dim', default=1)
    eps = argument(args, kwargs, 3, 'eps', default=1e-8)
    (x, y), _, right, space = align(func, (first, second), {})
    num_dims = max(dim_of(x), dim_of(y))
    from_right = num_dims - dim % num_dims
    if from_right != right:
        with plainly():
            out = torch.cosine_similarity(x, y, dim, eps)
            return as_rows(out, right - (from_right < right), space)
    with plainly():
        products = x * y
        x, y = (each.expand_as(products) for each in (plain(x), plain(y)))
        sums = torch.stack([products, x * x, y * y]).sum(dim % num_dims + 1)
        dot, *squares = sum_of_ranks(sums)
        floor = eps * eps
        return dot / (squares[0].clamp_min(floor) * squares[1].clamp_min(floor)).sqrt()


@rule('pairwise_distance')
def _pairwise_distance(func: Any, args: Any, kwargs: Any) -> Any:
    first, second = (argument(args, kwargs, i, f'x{i + 1}') for i in (0, 1))
    p = argument(args, kwargs, 2, 'p', default=2.0)
    eps = argument(args, kwargs, 3, 'eps', default=1e-6)
    keepdim = argument(args, kwargs, 4, 'keepdim', default=False)
    return (first - second + eps).norm(p, -1, keepdim=keepdim)


@rule('renorm')
def _renorm(func: Any, args: Any, kwargs: Any) -> Any:
    rows, p = args[0], argument(args, kwargs, 1, 'p')
    dim, largest = (argument(args, kwargs, i, n) for i, n in ((2, 'dim'), (3, 'maxnorm')))
    if not isinstance(rows, Rows):
        refuse(func)
    if dim % dim_of(rows) == rows._dim:
        with plainly():
            return tag(func(plain(rows), p, dim, largest), rows._dim, rows._space)
    others = [i for i in range(dim_of(rows)) if i != dim % dim_of(rows)]
    is_in_place = name_of(func).endswith('_')
    values = rows.clone() if is_in_place else rows  # what was there is kept for backward
    size = torch.linalg.vector_norm(values, p, others, keepdim=True)
    made = values * torch.where(size > largest, largest / (size + 1e-7), 1.0)
    return rows.copy_(made) if is_in_place else made


@rule('dist')
def _dist(func: Any, args: Any, kwargs: Any) -> Any:
    first, second = argument(args, kwargs, 0, 'input', 'self'), argument(args, kwargs, 1, 'other')
    return (first - second).norm(argument(args, kwargs, 2, 'p', default=2))
