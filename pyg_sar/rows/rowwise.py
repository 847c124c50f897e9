"""Functions that compute every row by itself: they act on other dimensions than the rows'.

A table says on which dimensions a function acts. If the rows are in another one, it runs on the own
rows. If they are in one of these, it runs over the rows of all ranks where that is known; else
every rank gathers all rows.

A rank without rows runs most functions on one row, of which nothing is kept: some functions of
torch refuse empty tensors, and what they give then has no history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.rows.align import align, argument, dim_of, dims_of, rows_in
from pyg_sar.rows.one_loss import for_rows
from pyg_sar.rows.over_ranks import on_all_rows
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, rule, rules_by_function
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.nested import in_nested

OverRows = Callable[[Any, Rows, Any, Any], Any]
"""``f(func, rows, args, kwargs)`` computes over the rows of all ranks, where rows are plain."""

Dims = slice | Sequence[int]


def of_all_rows(func: Any, _: Any, args: Any, kwargs: Any) -> Any:
    """Runs a function that acts on the dimension of the rows; the result is plain."""
    if is_in_place(name_of(func)):
        refuse(func, 'in place, over the rows of all ranks, is not known to be right')
    return on_all_rows(func, *args, **kwargs)


class _Acts(NamedTuple):
    """On which dimensions a function acts, and how it runs.

    Attributes:
        dims: Some of all; or where they stand among the arguments, and which without them.
        over: How it runs if the rows are in one of them.
        draws: Whether it draws random numbers.
        pads: Whether it needs a row where a rank has none; made-up matrices may have no inverse.
    """

    dims: slice | tuple[int, tuple[int, ...] | None]
    over: OverRows = of_all_rows
    draws: bool = False
    pads: bool = True


def _of(names: str, *acts: Any, **options: Any) -> dict[str, _Acts]:
    return dict.fromkeys(names.split(), _Acts(*acts, **options))


_LAST, _ALL, _NOWHERE = (-1,), None, 9

_TABLE: dict[str, _Acts] = {
    **_of('softmax log_softmax softmin', (1, _LAST)),
    **_of('sort argsort cumsum cumprod cummax cummin logcumsumexp glu', (1, _LAST)),
    **_of('topk diff', (2, _LAST)),
    **_of('take_along_dim', (2, _ALL)),
    **_of('flip', (1, _ALL)),
    **_of('roll', (2, _ALL)),
    **_of('linalg_matrix_norm', (2, (-2, -1))),
    **_of('layer_norm rms_norm', (_NOWHERE, _ALL)),
    **_of('group_norm', slice(1, None)),
    **_of('multinomial sample_dirichlet', slice(-1, None), draws=True),
    **_of('dirichlet_grad view_as_complex view_as_real', slice(-1, None)),
    **_of('gumbel_softmax', (4, _LAST), draws=True),
    **_of('cross', (2, _ALL)),
    **_of('linalg_cross linalg_vecdot', (_NOWHERE, _LAST)),
    **_of('fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft', (2, _LAST)),
    **_of(
        'det logdet slogdet inverse pinverse matrix_exp matrix_power cholesky qr svd tril triu '
        'linalg_cholesky linalg_cholesky_ex linalg_det linalg_eig linalg_eigh '
        'linalg_eigvals linalg_eigvalsh linalg_inv linalg_inv_ex linalg_lu linalg_matrix_exp '
        'linalg_matrix_power linalg_pinv linalg_qr linalg_slogdet linalg_svd '
        'linalg_svdvals',
        slice(-2, None),
        pads=False,
    ),
    **_of('pca_lowrank svd_lowrank', slice(-2, None), draws=True),
    **_of('fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2', (2, (-2, -1))),
    **_of('max_pool1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d', slice(-1, None)),
    **_of('max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d', slice(-2, None)),
    **_of('interpolate', slice(2, None)),
}
over_rows: dict[str, OverRows] = {}
"""Functions that compute over the rows of all ranks, by name."""


@rule(' '.join(_TABLE))
def _by_table(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare_name(func)
    acts, rows = _TABLE[name], args[0] if args else kwargs.get('input')
    dims: Dims
    if isinstance(rows, Rows):
        dims = dims_acted_on(func, dim_of(rows), args, kwargs)
        if rows._dim in dims:
            with plainly():
                return over_rows.get(name, acts.over)(func, rows, args, kwargs)
    elif isinstance(acts.dims, slice):
        dims = acts.dims
    else:
        return on_all_rows(func, *args, **kwargs)
    return rowwise(func, args, kwargs, dims, pads=acts.pads, draws=acts.draws)


def dims_acted_on(func: Any, num_dims: int, args: Any, kwargs: Any) -> Sequence[int]:
    """The dimensions that a function of the table acts on."""
    name = bare_name(func)
    dims = _TABLE[name].dims
    if isinstance(dims, slice):
        return range(num_dims)[dims]
    position, default = dims
    dim = argument(args, kwargs, position, 'dim', 'dims')
    if name == 'flip' and isinstance(dim, int):
        dim = args[1:]
    if dim is None and name in ('softmax', 'log_softmax', 'softmin'):
        dim = 0 if num_dims in (1, 3) else 1  # what torch.nn.functional takes then
    if name in ('layer_norm', 'rms_norm'):
        dim = range(-len(argument(args, kwargs, 1, 'normalized_shape')), 0)
    if dim is None and default is not None:
        return [dim % num_dims for dim in default]
    return dims_of(dim, num_dims) or range(num_dims)


def rowwise(
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
    dims: Dims,
    *,
    pads: bool = True,
    draws: bool = False,
) -> Any:
    """Runs a function that acts on dimensions `dims` on own rows, which are in another one.

    Plain tensors are broadcast, or have the rows of the whole.
    """
    rows, others = args[0] if args else None, (*args[1:], *kwargs.values())
    if draws:
        generator = next((arg for arg in others if isinstance(arg, torch.Generator)), None)
        with own_draws(rows_in(args, kwargs)[0].device, generator):
            return rowwise(func, args, kwargs, dims, pads=pads)
    given = args, kwargs
    if isinstance(rows, Rows) and not any(isinstance(arg, Tensor) for arg in others):
        sharding, num_dims, dim = rows._sharding, dim_of(rows), rows._dim
    else:
        args, kwargs, right, sharding = align(func, args, kwargs)
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        num_dims = max(map(dim_of, tensors))
        dim = num_dims - right
    dims = range(num_dims)[dims] if isinstance(dims, slice) else dims
    if dim in dims:
        return on_all_rows(func, *given[0], **given[1])

    def own(value: Any) -> Any:
        at = dim_of(value) - (num_dims - dim) if isinstance(value, Tensor) else -1
        return value if at < 0 else not_empty(plain(value), at)

    def as_rows(value: Any) -> Any:
        is_less = isinstance(value, Tensor) and value.dim() < num_dims
        before = sum(i < dim for i in dims) if is_less else 0
        return own_results(value, dim - before, sharding)

    with plainly():
        if pads and not sharding.own:
            args, kwargs = in_nested((args, kwargs), own)
        results = func(*args, **kwargs)
        if type(results) is Tensor and results.dim() == num_dims and sharding.own:
            return tag(results, dim, sharding)
        return in_nested(results, as_rows)


def own_results(value: Any, dim: int, sharding: Sharding) -> Any:
    """A result as rows; without own rows nothing is kept of it."""
    if not isinstance(value, Tensor):
        return value
    return tag(value if sharding.own else value.narrow(dim, 0, 0), dim, sharding)


def not_empty(value: Tensor, dim: int) -> Tensor:
    """Rows; where there are none, one row of any numbers, with their history.

    The numbers differ, as some norms divide by their variance; integers, which may be ids, are 0.
    """
    if value.size(dim):
        return value
    shape = [1 if i == dim else n for i, n in enumerate(value.shape)]
    row = value.new_zeros(shape)
    if value.is_floating_point() or value.is_complex():
        steps = torch.arange(row.numel(), device=value.device) % 5 + 1
        row = steps.view(shape).to(value.dtype)
    return torch.cat([value, row], dim)


@rule(
    'addbmm addr aminmax block_diag cartesian_prod cholesky_inverse combinations corrcoef '
    'cumulative_trapezoid diag_embed diagflat dist embedding_bag fft_fftn fft_fftshift fft_hfft2 '
    'fft_hfftn fft_ifftn fft_ifftshift fft_ihfft2 fft_ihfftn fft_irfftn fft_rfftn fliplr flipud '
    'gradient histogram inner kron linalg_cond linalg_lstsq linalg_lu_factor linalg_lu_solve '
    'linalg_matrix_rank linalg_multi_dot linalg_solve_ex local_response_norm lu_solve '
    'masked_scatter msort multilabel_margin_loss multilabel_soft_margin_loss pdist renorm reversed '
    'rot90 tensordot to_sparse to_sparse_coo to_sparse_csr trapezoid trapz '
    'triangular_solve triplet_margin_with_distance_loss unique_consecutive'
)
def _seldom(func: Any, args: Any, kwargs: Any) -> Any:
    """What few programs do with rows, whichever dimension they are."""
    return of_all_rows(func, None, args, kwargs)


@rule('segment_reduce')
def _of_segments(func: Any, args: Any, kwargs: Any) -> Any:
    kwargs = {'axis' if name == 'dim' else name: value for name, value in kwargs.items()}
    return on_all_rows(func, *args, **kwargs)


@rule('linalg_solve linalg_solve_triangular cholesky_solve')
def _solve(func: Any, args: Any, kwargs: Any) -> Any:
    """Right-hand sides that are rows, each by itself."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    right, is_left = argument(args, kwargs, 1, 'B', 'other'), kwargs.get('left', True)
    if name_of(func) == 'cholesky_solve':
        right, is_left = argument(args, kwargs, 0, 'input', 'B'), True
    are_rows = isinstance(right, Rows) and len(rows_in(tensors)) == 1
    if not are_rows or {dim_of(tensor) for tensor in tensors} != {2} or right._dim != is_left:
        return on_all_rows(func, *args, **kwargs)
    with plainly():
        result = func(*in_nested(args, _own), **in_nested(kwargs, _own))
        return tag(result, right._dim, right._sharding)


def _own(value: Any) -> Any:
    return plain(value) if isinstance(value, Rows) else for_rows(value)


def declare_rowwise(operation: Any) -> Any:
    """Declares that an operation of C++ or of a library computes every row by itself.

    Rows then go through it as through ``torch.relu``, and a message with it is computed block by
    block. Nothing checks that. For example::

        pyg_sar.nn.rowwise(torch.ops.my_library.activate)

    Args:
        operation: ``torch.ops.NAME.NAME``, one of its overloads, or what
            ``torch.library.custom_op`` gives. Rows are in the first dimension of its tensors, and
            of its results.

    Returns:
        The operation itself.

    Raises:
        ValueError: If it is no operation of ``torch.ops``. Later, where its rows are in another
            dimension.
    """
    packet = getattr(operation, '_opoverload', operation)
    packet = getattr(packet, 'overloadpacket', packet)
    if not isinstance(packet, type(torch.ops.aten.add)):
        raise ValueError(
            f"expected an operation of torch.ops in 'operation' (got {operation!r}): a function in "
            'Python needs no declaration'
        )
    for each in (packet, *(getattr(packet, name) for name in packet.overloads())):  # type: ignore[no-untyped-call]
        rules_by_function[each] = _by_itself
    return operation


def _by_itself(func: Any, args: Any, kwargs: Any) -> Any:
    if any(rows._dim for rows in rows_in(args, kwargs)):
        refuse(func, 'is declared for rows in the first dimension')
    return rowwise(func, args, kwargs, ())
