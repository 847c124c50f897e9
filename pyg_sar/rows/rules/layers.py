"""Layers that work on every row by itself, and norms over the rows of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.rows.align import argument, dim_of, dims_of, found, own_rows
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import met, own_draws
from pyg_sar.rows.rows import Rows, in_nested, plain, plainly, refuse, tag

_BATCH = ('input', 'running_mean', 'running_var', 'weight', 'bias', 'training', 'momentum', 'eps')


@rule('batch_norm')
def _batch_norm(func: Any, args: Any, kwargs: Any) -> Any:
    named = dict(zip(_BATCH, args, strict=False)) | kwargs
    rows = named['input']
    mean, var, weight, bias = (named.get(n) for n in _BATCH[1:5])
    eps = named.get('eps', 1e-5)
    if not isinstance(rows, Rows) or rows._dim != 0 or dim_of(rows) not in (2, 3):
        refuse(func, 'takes rows in the first of two or three dimensions')
    weight, bias = (None if each is None else met(each) for each in (weight, bias))
    if not named.get('training', False):
        with plainly():
            out = F.batch_norm(plain(rows), mean, var, weight, bias, False, 0.0, eps)
            return tag(out, 0, rows._space)
    dims = (0,) if dim_of(rows) == 2 else (0, 2)
    count = rows._space.total * (1 if dim_of(rows) == 2 else rows.size(2))
    if count < 2:
        raise ValueError(f'Expected more than 1 value per channel when training, got {count}')
    of_all, spread = rows.mean(dims), rows.var(dims, unbiased=False)
    if mean is not None:
        with torch.no_grad():
            momentum = named.get('momentum', 0.1)
            mean.lerp_(of_all.detach().to(mean.dtype), momentum)
            var.lerp_((spread.detach() * (count / (count - 1))).to(var.dtype), momentum)
    shape = (1, -1) if dim_of(rows) == 2 else (1, -1, 1)
    out = (rows - of_all.view(shape)) * (spread + eps).rsqrt().view(shape)
    out = out if weight is None else out * weight.view(shape)
    return out if bias is None else out + bias.view(shape)


@rule('instance_norm')
def _instance_norm(func: Any, args: Any, kwargs: Any) -> Any:
    """Over the last dimensions of every item; those may be the rows: PyG's InstanceNorm."""
    names = ('input', 'running_mean', 'running_var', 'weight', 'bias', 'use_input_stats')
    named = dict(zip((*names, 'momentum', 'eps'), args, strict=False)) | kwargs
    rows = named['input']
    if rows._dim != dim_of(rows) - 1 or dim_of(rows) != 3 or named.get('running_mean') is not None:
        if rows._dim == 0 and named.get('running_mean') is None:
            with plainly():
                given = {k: met(v) if type(v) is Tensor else plain(v) for k, v in named.items()}
                return tag(func(**given), 0, rows._space)
        refuse(func, 'with these dimensions is not known to be right')
    centred = rows - rows.mean(2, keepdim=True)
    out = centred / (centred.square().mean(2, keepdim=True) + named.get('eps', 1e-5)).sqrt()
    weight, bias = named.get('weight'), named.get('bias')
    out = out if weight is None else out * weight.view(1, -1, 1)
    return out if bias is None else out + bias.view(1, -1, 1)


@rule('layer_norm rms_norm group_norm')
def _layer_norm(func: Any, args: Any, kwargs: Any) -> Any:
    rows = args[0]
    if name_of(func) == 'group_norm':
        is_beside = rows._dim == 0
    else:
        shape = argument(args, kwargs, 1, 'normalized_shape')
        wide = 1 if isinstance(shape, int) else len(shape)
        is_beside = rows._dim < dim_of(rows) - wide
    if not is_beside:
        refuse(func, 'over the rows of all ranks is not known to be right')
    with plainly():
        args, kwargs = in_nested((args, kwargs), _as_met)
        return tag(func(*args, **kwargs), rows._dim, rows._space)


def _as_met(value: Any) -> Any:
    if isinstance(value, Rows):
        return plain(value)
    return met(value) if isinstance(value, Tensor) else value


@rule('embedding')
def _embedding(func: Any, args: Any, kwargs: Any) -> Any:
    first, second = args[0], argument(args, kwargs, 1, 'weight')
    ids, weight = (first, second) if not first.is_floating_point() else (second, first)
    if isinstance(weight, Rows):
        out = weight[ids]
        if any(kwargs.get(n) for n in ('max_norm', 'sparse', 'scale_grad_by_freq')):
            refuse(func, 'with these options is not known to be right')
        return out
    if kwargs.get('scale_grad_by_freq') or kwargs.get('max_norm') is not None:
        refuse(func, 'with these options is not known to be right')
    with plainly():
        return tag(F.embedding(plain(ids), met(weight), **_only(kwargs)), ids._dim, ids._space)


def _only(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in ('padding_idx', 'sparse')}


def _of_items(place: Any) -> Any:
    """A rule of a function of a batch, where the rows are the items of it."""

    def of_items(func: Any, args: Any, kwargs: Any) -> Any:
        rows = found(args, kwargs)
        first = rows[0]
        at = place(first, args, kwargs)
        if any(each._dim != at for each in rows if dim_of(each) == dim_of(first)):
            refuse(func, 'over the rows of all ranks needs all rows in one place')
        space = first._space
        if any(not space.is_same(each._space) for each in rows):
            refuse(func, 'takes rows of one space')

        def own(value: Any) -> Any:
            if (
                type(value) is Tensor
                and value.dim() == dim_of(first)
                and value.size(at) == space.total
                and space.has_ids()
            ):
                return own_rows(func, value, at, space)
            return _as_met(value)

        with plainly(), own_draws(first.device):
            args, kwargs = in_nested((args, kwargs), own)
            out = func(*args, **kwargs)

        def made(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            dims = [i for i in (at, 1, 0) if i < value.dim() and value.size(i) == space.own]
            return tag(value, dims[0], space) if dims else value

        return in_nested(out, made)

    return of_items


def _first(rows: Any, args: Any, kwargs: Any) -> int:
    return 0


rule('lstm gru rnn_tanh rnn_relu')(
    _of_items(lambda rows, args, kwargs: 0 if args and args[-1] is True else 1)
)
rule('lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell')(_of_items(_first))
rule(
    'conv1d conv2d max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool2d '
    'avg_pool2d interpolate dropout1d dropout2d feature_dropout feature_alpha_dropout unfold_items '
    'local_response_norm'
)(_of_items(_first))
rule('multi_head_attention_forward')(
    _of_items(lambda rows, args, kwargs: 1 if dim_of(rows) == 3 else -1)
)
rule('scaled_dot_product_attention')(
    _of_items(lambda rows, args, kwargs: rows._dim if rows._dim < dim_of(rows) - 2 else -1)
)


@rule('linalg_inv linalg_det linalg_cholesky linalg_solve linalg_eigh linalg_svd inverse det')
def _of_matrices(func: Any, args: Any, kwargs: Any) -> Any:
    """Every matrix by itself."""
    rows = found(args, kwargs)[0]
    dims = dims_of([-1, -2], dim_of(rows)) or []
    if rows._dim in dims or len(found(args, kwargs)) > 1:
        refuse(func, 'over the rows of all ranks needs all rows in one place')
    with plainly():
        args, kwargs = in_nested((args, kwargs), _as_met)
        return in_nested(func(*args, **kwargs), lambda t: tag(t, rows._dim, rows._space))
