"""Functions of the last dimensions of a tensor, its core: matrices, images, pooled windows.

The rows may be in any other dimension, of the batch. Every core is computed by itself, so it runs
on the own rows; plain tensors are broadcast along the batch, or have the rows of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ground.nested import in_nested
from pyg_sar.rows.align import align, argument, dim_of, found, named_rule
from pyg_sar.rows.over_ranks import sum_of_ranks, widened
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, rule
from pyg_sar.rows.replicated import all_of_plain, own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.without_rows import run

_IMAGES: dict[str, int] = {
    **{f'{kind}_pool{n}d': n for kind in ('avg', 'max', 'lp') for n in (1, 2, 3)},
    **{f'adaptive_{kind}_pool{n}d': n for kind in ('avg', 'max') for n in (1, 2, 3)},
    **{f'max_pool{n}d_with_indices': n for n in (1, 2, 3)},
    **{f'adaptive_max_pool{n}d_with_indices': n for n in (1, 2, 3)},
    **{f'max_unpool{n}d': n for n in (1, 2, 3)},
    **dict.fromkeys(['pixel_shuffle', 'pixel_unshuffle'], 3),
}
"""How many of the last dimensions are an image."""

_MATRICES = (
    'linalg_inv linalg_inv_ex linalg_det linalg_slogdet linalg_cholesky linalg_cholesky_ex '
    'linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_svd linalg_svdvals linalg_qr '
    'linalg_pinv linalg_matrix_power linalg_matrix_exp linalg_matrix_rank linalg_lu '
    'linalg_lu_factor linalg_lu_factor_ex linalg_ldl_factor '
    'linalg_ldl_factor_ex inverse det slogdet logdet cholesky cholesky_inverse svd qr pinverse '
    'matrix_power matrix_exp geqrf'
)


@rule(' '.join(_IMAGES))
def _of_images(func: Any, args: Any, kwargs: Any) -> Any:
    return by_cores(func, args, kwargs, _IMAGES[bare_name(func)], pads=True)


@rule(_MATRICES)
def _of_matrices(func: Any, args: Any, kwargs: Any) -> Any:
    if any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values())):
        refuse(func, 'and other tensors is not known to be right')
    return by_cores(func, args, kwargs, 2)


@rule('linalg_solve linalg_solve_ex linalg_solve_triangular cholesky_solve triangular_solve')
def _solve(func: Any, args: Any, kwargs: Any) -> Any:
    """Matrices by themselves; or right-hand sides that are rows, each by itself."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    dims, rows = {dim_of(each) for each in tensors}, found(args, kwargs)
    if dims == {2} and len(rows) == 1:
        (b,) = rows
        right, is_left = argument(args, kwargs, 1, 'B', 'other'), kwargs.get('left', True)
        if name_of(func).startswith(('cholesky', 'triangular')):
            right, is_left = argument(args, kwargs, 0, 'input', 'b', 'B'), True
        if right is b and b._dim == is_left:
            with plainly():
                made = func(*in_nested(args, _own), **in_nested(kwargs, _own))
                if isinstance(made, Tensor):
                    return tag(made, b._dim, b._space)
                return type(made)((tag(made[0], b._dim, b._space), *made[1:]))
    if len(dims) > 1 and name_of(func) in ('linalg_solve', 'linalg_solve_ex'):
        refuse(func, 'and vectors is not known to be right: make them matrices of one column')
    return by_cores(func, args, kwargs, 2)


def _own(value: Any) -> Any:
    return plain(value) if isinstance(value, Rows) else all_of_plain(value)


@rule('interpolate upsample upsample_nearest upsample_bilinear')
def _interpolate(func: Any, args: Any, kwargs: Any) -> Any:
    rows = argument(args, kwargs, 0, 'input')
    return by_cores(func, args, kwargs, dim_of(rows) - 2, pads=True)


@rule('dropout1d dropout2d dropout3d feature_dropout feature_alpha_dropout')
def _of_channels(func: Any, args: Any, kwargs: Any) -> Any:
    """Whole channels are dropped; without a batch the first dimension is that of the channels."""
    name, rows = bare_name(func), argument(args, kwargs, 0, 'input')
    if is_in_place(name_of(func)) or argument(args, kwargs, 3, 'inplace'):
        refuse(func, 'in place is not known to be right')
    core = int(name[-2]) if name[-1] == 'd' and name[-2].isdigit() else dim_of(rows) - 2
    return by_cores(func, args, kwargs, core, draws=True)


def by_cores(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    num_core_dims: int,
    *,
    draws: bool = False,
    pads: bool = False,
) -> Any:
    """Runs a function on own rows that are in a dimension of the batch."""
    args, kwargs, right, space = align(func, args, kwargs)
    if right <= num_core_dims:
        refuse(func, 'is known where the rows are items of the batch')
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    device = next(each.device for each in tensors if isinstance(each, Rows))
    # The dimensions of the batch come first, in the results as well.
    dim = max(map(dim_of, tensors)) - right
    with plainly(), own_draws(device) if draws else nullcontext():
        if pads:
            return run(func, args, kwargs, space, right, lambda _: dim)
        # torch takes matrices of which there are none
        out = func(*in_nested(args, plain), **in_nested(kwargs, plain))
        return in_nested(out, lambda each: tag(each, dim, space))


@named_rule('cov corrcoef')
def _covariance(
    func: Any, input: Rows, correction: int = 1, fweights: Any = None, aweights: Any = None
) -> Any:
    """The rows are what is observed, in the last dimension."""
    if input._dim != dim_of(input) - 1 or fweights is not None or aweights is not None:
        refuse(func, 'is known where the rows are observations without weights')
    with plainly():
        values, total = plain(input), input._space.total
        if not (values.is_floating_point() or values.is_complex()):
            values = values.to(torch.get_default_dtype())
        wide = values.unsqueeze(0) if values.dim() == 1 else values
        exact = widened(wide.dtype)
        mean = sum_of_ranks(wide.sum(1, keepdim=True, dtype=exact)) / total
        centred = wide - mean
        out = sum_of_ranks(centred @ centred.mH) / max(total - correction, 0)
        if name_of(func) == 'corrcoef':
            scale = out.diagonal().real.sqrt()
            out = out / scale.unsqueeze(1) / scale.unsqueeze(0)
        return out.to(values.dtype).squeeze()


@rule('linalg_norm')
def _norm_of_any(func: Any, args: Any, kwargs: Any) -> Any:
    """Of vectors or matrices, by the number of dimensions."""
    names = ('input', 'ord', 'dim', 'keepdim')
    named = dict(zip(names, args, strict=False)) | kwargs
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
