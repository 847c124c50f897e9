"""Losses: those of the rows of all ranks, with the denominators of the whole."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import align, argument, as_rows, found, own_rows
from pyg_sar.rows.over_ranks import sum_of_ranks
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import met
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag

_PLACES = {
    'mse_loss': 4,
    'l1_loss': 4,
    'smooth_l1_loss': 4,
    'huber_loss': 2,
    'binary_cross_entropy': 5,
    'binary_cross_entropy_with_logits': 5,
    'kl_div': 4,
    'cosine_embedding_loss': 6,
    'margin_ranking_loss': 6,
    'hinge_embedding_loss': 5,
    'soft_margin_loss': 4,
    'poisson_nll_loss': 7,
    'gaussian_nll_loss': 5,
    'triplet_margin_loss': 8,
    'multi_margin_loss': 7,
    'multilabel_margin_loss': 4,
    'multilabel_soft_margin_loss': 5,
    'cross_entropy': 6,
    'nll_loss': 6,
}
"""Where `reduction` stands among the arguments."""


def _reduction(func: Any, name: str, args: Any, kwargs: Any) -> tuple[str, Any, dict[str, Any]]:
    """The reduction that is asked for, and the arguments without it."""
    kwargs, place = dict(kwargs), _PLACES.get(name, 99)
    for old in ('size_average', 'reduce'):
        if kwargs.pop(old, None) is not None:
            refuse(func, f"with the deprecated '{old}': use reduction")
    how = kwargs.pop('reduction', None)
    if how is None:
        how = args[place] if len(args) > place else 'mean'
    if len(args) > place and len(args) != place + 1:
        refuse(func, 'with so many arguments by place: name them')
    return str(how), args[:place], kwargs


@rule(
    'mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy hinge_embedding_loss '
    'binary_cross_entropy_with_logits kl_div cosine_embedding_loss margin_ranking_loss '
    'soft_margin_loss poisson_nll_loss gaussian_nll_loss triplet_margin_loss '
    'triplet_margin_with_distance_loss multilabel_margin_loss multilabel_soft_margin_loss'
)
def _loss(func: Any, args: Any, kwargs: Any) -> Any:
    """A loss of one number, or of one row, each."""
    name = name_of(func)
    how, args, kwargs = _reduction(func, name, args, kwargs)
    by_row = {
        'cosine_embedding_loss',
        'triplet_margin_loss',
        'triplet_margin_with_distance_loss',
        'multilabel_margin_loss',
        'multilabel_soft_margin_loss',
    }
    for rows in found(args, kwargs):
        if name in by_row and rows._dim == rows.dim() - 1 and rows.dim() > 1:
            refuse(func, 'with rows in the last dimension')
    args, kwargs, right, space = _aligned(func, name, args, kwargs)
    with plainly():
        each = func(*args, **kwargs, reduction='none')
        if how == 'none':
            gone = args[0].dim() - each.dim()
            return as_rows(each, right - gone, space)
        total = sum_of_ranks(each.sum())
        if how == 'sum':
            return total
        if how == 'batchmean':
            size = args[0].size(0)
            return total / (space.total if right == args[0].dim() else size)
        own = each.numel()
        others = own // max(space.own, 1) if space.own else math.prod(_beside(each, right, args))
        return total / (others * space.total)


def _aligned(func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Own rows everywhere; targets of one number for each row stand with the rows in front."""
    place = {'cosine_embedding_loss': 2}.get(name)
    target = None if place is None else argument(args, kwargs, place, 'target')
    if not isinstance(target, Tensor) or argument(args, kwargs, 0, 'input1').dim() < 2:
        return align(func, args, kwargs)
    others = (*args[:2],)
    named = {k: v for k, v in kwargs.items() if k != 'target'}
    others, named, right, space = align(func, others, named)
    own = plain(target) if isinstance(target, Rows) else own_rows(func, target, 0, space)
    return others, {**named, 'target': own}, right, space


def _beside(each: Tensor, right: int, args: Any) -> list[int]:
    place = each.dim() - (right - (args[0].dim() - each.dim()))
    return [size for i, size in enumerate(each.shape) if i != place]


@rule('cross_entropy nll_loss multi_margin_loss')
def _class_loss(func: Any, args: Any, kwargs: Any) -> Any:
    """A loss of scores and a class for every row, or its probabilities."""
    name = name_of(func)
    how, args, kwargs = _reduction(func, name, args, kwargs)
    scores, target = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'target')
    rows = found((scores, target))
    if not rows or any(each._dim != 0 for each in rows) or scores.dim() < 2:
        refuse(func, 'with rows in another dimension than the first')
    space = rows[0]._space
    own = []
    for each in (scores, target):
        if isinstance(each, Rows):
            if not space.is_same(each._space):
                refuse(func, f'of {space!r} and of {each._space!r} has no meaning')
            own.append(plain(each))
        else:
            own.append(own_rows(func, each, 0, space))
    kwargs |= {'input': own[0], 'target': own[1]}
    names = {
        'cross_entropy': ('weight', 'size_average', 'ignore_index', 'reduce'),
        'nll_loss': ('weight', 'size_average', 'ignore_index', 'reduce'),
        'multi_margin_loss': ('p', 'margin', 'weight', 'size_average', 'reduce'),
    }[name]
    kwargs |= {n: v for n, v in zip(names, args[2:], strict=False) if v is not None}
    weight = kwargs.get('weight')
    if weight is not None:
        if isinstance(weight, Rows):
            refuse(func, 'with rows as weights')
        kwargs['weight'] = met(weight)
    with plainly():
        if how == 'none':
            return tag(func(**kwargs, reduction='none'), 0, space)
        # torch 2.13 leaves the sum of no rows unset in multi_margin_loss.
        each = 'none' if name == 'multi_margin_loss' else 'sum'
        total = func(**kwargs, reduction=each).sum()
        if how == 'sum':
            return sum_of_ranks(total)
        count = _count(name, own[1], kwargs, total)
        sums = sum_of_ranks(torch.stack([total, count]))
        return sums[0] / sums[1]


def _count(name: str, target: Tensor, kwargs: dict[str, Any], like: Tensor) -> Tensor:
    """What a mean is divided by: the weights of the classes of rows that count."""
    weight = kwargs.get('weight')
    if name == 'multi_margin_loss' or target.is_floating_point():
        return like.new_tensor(target.size(0) * math.prod(target.shape[2:]))
    is_in = target != kwargs.get('ignore_index', -100)
    if weight is None:
        return is_in.sum().to(like.dtype)
    chosen = weight.detach()[target.clamp(min=0)] * is_in
    return chosen.sum().to(like.dtype)
