"""Norms and covariances of all rows as one matrix, and equations with rows on the right side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, dim_of, named_rule, rows_in
from pyg_sar.rows.over_ranks import sum_of_ranks, widened
from pyg_sar.rows.registry import name_of, rule, rule_of
from pyg_sar.rows.replicated import mean_gradient_if_plain
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rowwise import needs_all_rows, over_rows
from pyg_sar.utils.nested import in_nested


@rule('linalg_solve linalg_solve_triangular cholesky_solve')
def _solve(func: Any, args: Any, kwargs: Any) -> Any:
    """Right-hand sides that are rows, each by itself."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    right, is_left = argument(args, kwargs, 1, 'B', 'other'), kwargs.get('left', True)
    if name_of(func) == 'cholesky_solve':
        right, is_left = argument(args, kwargs, 0, 'input', 'B'), True
    are_rows = isinstance(right, Rows) and len(rows_in(tensors)) == 1
    if not are_rows or {dim_of(tensor) for tensor in tensors} != {2} or right._dim != is_left:
        refuse(func, 'is known of one matrix, and right-hand sides that are rows')
    with plainly():
        result = func(*in_nested(args, _own), **in_nested(kwargs, _own))
        return tag(result, right._dim, right._space)


def _own(value: Any) -> Any:
    return plain(value) if isinstance(value, Rows) else mean_gradient_if_plain(value)


@named_rule('cov')
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
