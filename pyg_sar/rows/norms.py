"""Normalisation by statistics of all ranks' rows, or by running statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm.ranks import world_size
from pyg_sar.ops.batch_norm import BatchNorm, moments
from pyg_sar.rows.align import bound, dim_of
from pyg_sar.rows.registry import rule
from pyg_sar.rows.replicated import mean_gradient_if_plain
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import not_empty, own_results

_NODES_FIRST = (
    'put nodes first, where they are samples and no channels: norm(x.transpose(0, 1)); a number '
    'for every node is (x - x.mean(dim, keepdim=True)) / x.std(dim, keepdim=True)'
)


def _bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name; refuses if the first is not rows or another one is."""
    named = bound(func, args, kwargs)
    first, *rest = named.values()
    if not isinstance(first, Rows) or any(isinstance(value, Rows) for value in rest):
        refuse(func, 'as weights or statistics is not known to be right')
    return named


def _on_own_rows(func: Any, named: dict[str, Any]) -> Any:
    rows = named['input']
    with plainly():
        own = rows if rows._space.own else not_empty(plain(rows), rows._dim)
        others = {name: mean_gradient_if_plain(value) for name, value in named.items()}
        return own_results(func(**others | {'input': own}), rows._dim, rows._space)


@rule('batch_norm')
def _batch_norm(func: Any, args: Any, kwargs: Any) -> Any:
    """In training by the moments of all ranks' rows; running statistics are equal on all ranks."""
    named = _bound(func, args, kwargs)
    rows = named['input']
    if rows._dim == 1:
        refuse(func, 'would have the channels of this rank alone', _NODES_FIRST)
    if not named['training'] or world_size() == 1:
        return _on_own_rows(func, named)
    dim, space = rows._dim, rows._space
    with plainly():
        x = plain(rows)
        last = x.movedim(1, -1)
        flat = last.reshape(-1, x.size(1))
        mean, var, count = moments(flat.detach())
        if count < 2:
            raise ValueError(
                f'expected more than 1 row on all ranks together when training (got {count})'
            )
        _update(named, mean, var * (count / (count - 1)))
        weight, bias = (mean_gradient_if_plain(named[name]) for name in ('weight', 'bias'))
        out: Tensor = BatchNorm.apply(flat, weight, bias, mean, var, count, named['eps'])
        return tag(out.view(last.shape).movedim(-1, 1), dim, space)


def _update(named: dict[str, Any], mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        for name, value in (('running_mean', mean), ('running_var', var)):
            running = named[name]
            if running is not None:
                running.lerp_(value.to(running.dtype), named['momentum'])


@rule('instance_norm')
def _instance_norm(func: Any, args: Any, kwargs: Any) -> Any:
    named = _bound(func, args, kwargs)
    rows = named['input']
    if rows._dim == 1:
        refuse(func, 'would have the channels of this rank alone', _NODES_FIRST)
    if not named['use_input_stats']:
        return _on_own_rows(func, named)
    statistics = 'running_mean', 'running_var'
    if rows._dim == 0:
        if named['running_mean'] is not None:
            dims = list(range(2, dim_of(rows)))
            _update(named, rows.detach().mean(dims).mean(0), rows.detach().var(dims).mean(0))
        return _on_own_rows(func, named | dict.fromkeys(statistics))
    # As torch has it: a batch norm in which every instance has channels of its own.
    count, channels, *others = rows.shape
    flat = rows.reshape(1, count * channels, *others)
    names = ('weight', 'bias', *statistics)
    repeated = {n: None if named[n] is None else named[n].repeat(count) for n in names}
    mean, var, momentum = repeated['running_mean'], repeated['running_var'], named['momentum']
    affine = repeated['weight'], repeated['bias']
    out = F.batch_norm(flat, mean, var, *affine, True, momentum, named['eps'])
    for name, value in zip(statistics, (mean, var), strict=True):
        if value is not None:
            named[name].copy_(value.view(count, channels).mean(0))
    return out.reshape(rows.shape)
