"""Functions of matrices, in the last two dimensions, and covariances of all rows as one matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, dim_of, named_rule, rows_in
from pyg_sar.rows.over_ranks import sum_of_ranks, widened
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, rule, rule_of
from pyg_sar.rows.replicated import mean_gradient_if_plain
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import needs_all_rows, over_rows, rowwise
from pyg_sar.utils.nested import in_nested

_LAST_TWO = slice(-2, None)

_MATRICES = (
    'linalg_inv linalg_inv_ex linalg_det linalg_slogdet linalg_cholesky linalg_cholesky_ex '
    'linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_svd linalg_svdvals linalg_qr '
    'linalg_pinv linalg_matrix_power linalg_matrix_exp linalg_matrix_rank linalg_lu '
    'linalg_lu_factor linalg_lu_factor_ex linalg_ldl_factor '
    'linalg_ldl_factor_ex inverse det slogdet logdet cholesky cholesky_inverse svd qr pinverse '
    'matrix_power matrix_exp geqrf'
)


@rule(_MATRICES)
def _of_matrices(func: Any, args: Any, kwargs: Any) -> Any:
    if any(isinstance(arg, Tensor) for arg in (*args[1:], *kwargs.values())):
        refuse(func, 'and other tensors is not known to be right')
    return rowwise(func, args, kwargs, _LAST_TWO, pads=False)


@rule('linalg_solve linalg_solve_ex linalg_solve_triangular cholesky_solve triangular_solve')
def _solve(func: Any, args: Any, kwargs: Any) -> Any:
    """Matrices by themselves; or right-hand sides that are rows, each by itself."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    dims, rows = {dim_of(tensor) for tensor in tensors}, rows_in(args, kwargs)
    if dims == {2} and len(rows) == 1:
        (b,) = rows
        right, is_left = argument(args, kwargs, 1, 'B', 'other'), kwargs.get('left', True)
        if name_of(func).startswith(('cholesky', 'triangular')):
            right, is_left = argument(args, kwargs, 0, 'input', 'b', 'B'), True
        if right is b and b._dim == is_left:
            with plainly():
                result = func(*in_nested(args, _own), **in_nested(kwargs, _own))
                if isinstance(result, Tensor):
                    return tag(result, b._dim, b._space)
                return type(result)((tag(result[0], b._dim, b._space), *result[1:]))
    if len(dims) > 1 and name_of(func) in ('linalg_solve', 'linalg_solve_ex'):
        refuse(func, 'and vectors is not known to be right', 'write x.unsqueeze(1)')
    return rowwise(func, args, kwargs, _LAST_TWO, pads=False)


def _own(value: Any) -> Any:
    return plain(value) if isinstance(value, Rows) else mean_gradient_if_plain(value)


@rule('dropout1d dropout2d dropout3d feature_dropout feature_alpha_dropout')
def _of_channels(func: Any, args: Any, kwargs: Any) -> Any:
    """Whole channels are dropped; without a batch the first dimension is that of the channels."""
    if is_in_place(name_of(func)) or argument(args, kwargs, 3, 'inplace'):
        refuse(func, 'in place is not known to be right')
    digit = bare_name(func)[-2]
    channel = slice(-int(digit), None) if digit.isdigit() else slice(2, None)
    return rowwise(func, args, kwargs, channel, pads=False, draws=True)


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
        mean = sum_of_ranks(wide.sum(1, keepdim=True, dtype=widened(wide.dtype))) / total
        centred = wide - mean
        out = sum_of_ranks(centred @ centred.mH) / max(total - correction, 0)
        if name_of(func) == 'corrcoef':
            scale = out.diagonal().real.sqrt()
            out = out / scale.unsqueeze(1) / scale.unsqueeze(0)
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
        needs_all_rows(func)
    dims = argument(args, kwargs, 2, 'dim', default=(-2, -1))
    keepdim = argument(args, kwargs, 3, 'keepdim', default=False)
    norm, dtype = torch.linalg.vector_norm, kwargs.get('dtype')
    return rule_of(norm)(norm, (rows, 2, dims, keepdim), {'dtype': dtype} if dtype else {})


over_rows['linalg_matrix_norm'] = _over_matrices
