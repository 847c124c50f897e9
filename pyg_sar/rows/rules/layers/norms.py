"""Normalisation: by statistics of all ranks' rows, of every row by itself, or of what is given."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.comm import world_size
from pyg_sar.monitor.recipes import remember
from pyg_sar.over_all_nodes.batch_norm import BatchNorm, moments, normalized
from pyg_sar.rows.align import bound, dim_of
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import met
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.without_rows import run


def _bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name; refuses if the first is not rows or another one is."""
    named = bound(func, args, kwargs)
    first, *rest = named.values()
    if not isinstance(first, Rows) or any(isinstance(each, Rows) for each in rest):
        refuse(func, 'as weights or statistics is not known to be right')
    for name in ('weight', 'bias'):
        if isinstance(named.get(name), Tensor):
            named[name] = met(named[name])
    return named


def _on_own_rows(func: Any, named: dict[str, Any]) -> Any:
    others = dict(named)
    rows = others.pop('input')
    dim = rows._dim
    with plainly():
        if name_of(func) in ('layer_norm', 'rms_norm'):  # they take what has no rows
            return tag(func(plain(rows), **others), dim, rows._space)
        return run(func, (plain(rows),), others, rows._space, rows.dim() - dim, lambda _: dim)


@rule('batch_norm')
def _batch_norm(func: Any, args: Any, kwargs: Any) -> Any:
    """In training by the moments of all ranks' rows; running statistics are equal on all ranks."""
    named = _bound(func, args, kwargs)
    rows = named['input']
    if rows._dim == 1:
        refuse(func, 'would have the channels of this rank alone')
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
        out: Tensor = BatchNorm.apply(
            flat, named['weight'], named['bias'], mean, var, count, named['eps']
        )
        weight, bias, eps = named['weight'], named['bias'], named['eps']
        remember(out, partial(normalized, eps=eps), flat, weight, bias, mean, var)
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
        refuse(func, 'would have the channels of this rank alone')
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
    each = {n: None if named[n] is None else named[n].repeat(count) for n in names}
    mean, var, momentum = each['running_mean'], each['running_var'], named['momentum']
    affine = each['weight'], each['bias']
    out = F.batch_norm(flat, mean, var, *affine, True, momentum, named['eps'])
    for name, value in zip(statistics, (mean, var), strict=True):
        if value is not None:
            named[name].copy_(value.view(count, channels).mean(0))
    return out.reshape(rows.shape)


@rule('layer_norm rms_norm group_norm local_response_norm')
def _of_each(func: Any, args: Any, kwargs: Any) -> Any:
    """Norms of every row by itself."""
    named, name = _bound(func, args, kwargs), name_of(func)
    dim, num_dims = named['input']._dim, dim_of(named['input'])
    if name == 'group_norm':
        is_right = dim == 0
    elif name == 'local_response_norm':
        is_right = dim != 1
    else:
        is_right = dim < num_dims - len(named['normalized_shape'])
    if not is_right:
        refuse(func, 'would take the statistics of this rank alone')
    return _on_own_rows(func, named)
