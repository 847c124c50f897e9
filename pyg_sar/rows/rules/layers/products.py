"""Products: row by row, or with the rows summed over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.comm import Exchange
from pyg_sar.rows.align import align, argument, as_rows, dim_of, own_rows, whole_shape
from pyg_sar.rows.made_edges import edges_of
from pyg_sar.rows.registry import bare, name_of, rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.layers.contract import EVERY_PAIR, contract, rows_letter
from pyg_sar.rows.rules.numbers.pointwise import is_in_place


@rule('matmul rmatmul mm bmm mv dot vdot linalg_matmul sparse_mm spmm')
def _matmul(func: Any, args: Any, kwargs: Any) -> Any:
    """``[..., i, k] @ [..., k, j]``, or vectors ``[k]``."""
    a, b = _operands(func, args, kwargs, ('input', 'self'), ('other', 'mat2', 'vec', 'tensor'))
    run: Callable[..., Any] = func
    if name_of(func) == '__rmatmul__':
        a, b, run = b, a, torch.matmul
    if not isinstance(a, Rows) and a.layout != torch.strided:
        return _of_sparse(func, a, b)
    of_a, of_b = _with_batch(dim_of(a), 'ik', 'k'), _with_batch(dim_of(b), 'kj', 'k')
    batch = list(range(-max(dim_of(a), dim_of(b), 2), -2))
    out = [*batch, *of_a[-2:-1], *([of_b[-1]] if len(of_b) > 1 else [])]
    broadcasting = batch if bare(name_of(func)).endswith('matmul') else []
    return contract(func, (a, b), (of_a, of_b), out, run, broadcasting=broadcasting)


def _of_sparse(func: Any, matrix: Tensor, rows: Rows) -> Any:
    """A plain sparse matrix of the whole by rows: its entries are edges between them."""
    if rows._dim or matrix.dim() != 2 or dim_of(rows) > 2:
        refuse(func, 'and a sparse matrix is known for matrices of rows')
    if matrix.size(1) != rows._space.total:
        raise RuntimeError(f'{tuple(matrix.shape)} @ {tuple(rows.shape)}: the sizes do not fit')
    if matrix.size(0) != matrix.size(1):
        refuse(func, 'and a sparse matrix that is not square is not known to be right')
    with plainly():
        entries = matrix.to_sparse().coalesce()
        ids = entries.indices()
        edges = edges_of(func, ids.flip(0), rows._space, rows._space, matrix)
        values = own_rows(func, entries.values(), 0, edges._space)
        x, (src, dst) = plain(rows), edges.handle.as_subclass(Tensor)
        sources = with_halo(x, Exchange(edges.ends.shard)).index_select(0, src)
        terms = sources * values.view(-1, *[1] * (x.dim() - 1))
        return tag(
            torch.zeros_like(x, dtype=terms.dtype, requires_grad=False).index_add(0, dst, terms),
            0,
            rows._space,
        )


def _with_batch(num_dims: int, matrix: str, vector: str) -> list[Hashable]:
    """Letters of a matrix with dimensions in front, which have numbers from the right."""
    return [*range(-num_dims, -2), *matrix] if num_dims > 1 else [*vector[:num_dims]]


@rule('inner')
def _inner(func: Any, args: Any, kwargs: Any) -> Any:
    """``[..., k]`` and ``[..., k]``."""
    a, b = _operands(func, args, kwargs, ('input', 'self'), ('other',))
    if not dim_of(a) or not dim_of(b):
        return a * b
    of_a, of_b = [('a', i) for i in range(dim_of(a) - 1)], [('b', i) for i in range(dim_of(b) - 1)]
    return contract(func, (a, b), ([*of_a, 'k'], [*of_b, 'k']), [*of_a, *of_b], func)


@rule('outer ger')
def _outer(func: Any, args: Any, kwargs: Any) -> Any:
    operands = _operands(func, args, kwargs, ('input', 'self'), ('vec2',))
    return contract(func, operands, ('i', 'j'), 'ij', func)


@rule('linear')
def _linear(func: Any, args: Any, kwargs: Any) -> Any:
    """``[..., k] @ [o, k].t() + [o]``, or a weight ``[k]``."""
    x, weight = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'weight')
    batch: list[Hashable] = list(range(dim_of(x) - 1))
    of_out = ['o'] if dim_of(weight) > 1 else []
    letters = [[*batch, 'k'], [*of_out, 'k']]
    bias = argument(args, kwargs, 2, 'bias')
    return _with_bias(func, (x, weight), letters, [*batch, *of_out], bias)


@rule('bilinear')
def _bilinear(func: Any, args: Any, kwargs: Any) -> Any:
    """``[..., i]``, ``[..., j]`` and a weight ``[o, i, j]``, and a bias ``[o]``."""
    names = ('input1', 'input2', 'weight')
    operands = tuple(argument(args, kwargs, place, name) for place, name in enumerate(names))
    batch: list[Hashable] = list(range(dim_of(operands[0]) - 1))
    letters = [[*batch, 'i'], [*batch, 'j'], ['o', 'i', 'j']]
    bias = argument(args, kwargs, 3, 'bias')

    def run(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if 0 not in (*x.shape, *y.shape, *weight.shape):
            return func(x, y, weight, bias)
        # Of no rows torch has no gradient at all, and all ranks have to enter the backward.
        out = torch.einsum('...i,oij,...j->...o', x, weight, y)
        return out if bias is None else out + bias

    return _with_bias(func, operands, letters, [*batch, 'o'], bias, run)


def _with_bias(
    func: Any, operands: Any, letters: Any, out: Any, bias: Tensor | None, run: Any = None
) -> Any:
    """What is summed over the ranks has its bias once, after the sum."""
    run = run or func
    if bias is None:
        return contract(func, operands, letters, out, run)
    of_bias = out[-dim_of(bias) :] if dim_of(bias) else []
    operands, letters = (*operands, bias), [*letters, of_bias]
    if rows_letter(func, operands, letters) in out:
        return contract(func, operands, letters, out, run, broadcasting=of_bias)
    return contract(func, operands[:-1], letters[:-1], out, run) + bias


@rule('addmm addmv addbmm baddbmm addr')
def _added(func: Any, args: Any, kwargs: Any) -> Any:
    """``beta * input + alpha * product``; what `input` holds has no meaning with a `beta` of 0."""
    if not all(isinstance(each, Tensor) for each in args) or kwargs.get('out') is not None:
        refuse(func, "with 'out', or in its old form, is not known to be right")
    name = bare(name_of(func))
    to = argument(args, kwargs, 0, 'input', 'self')
    a = argument(args, kwargs, 1, 'mat1', 'batch1', 'mat', 'vec1')
    b = argument(args, kwargs, 2, 'mat2', 'batch2', 'vec', 'vec2')
    made: Any = _PRODUCT[name](a, b)
    if name == 'addbmm':
        made = made.sum(0)
    alpha, beta = kwargs.get('alpha', 1), kwargs.get('beta', 1)
    made = made if alpha == 1 else made * alpha
    if beta != 0:
        made = made + (to if beta == 1 else to * beta)
    return to.copy_(made) if is_in_place(name_of(func)) else made


_PRODUCT: dict[str, Callable[..., Any]] = {
    'addmm': torch.mm,
    'addmv': torch.mv,
    'addbmm': torch.bmm,
    'baddbmm': torch.bmm,
    'addr': torch.outer,
}


@rule('tensordot')
def _tensordot(func: Any, args: Any, kwargs: Any) -> Any:
    """Dimensions of the one with dimensions of the other."""
    if kwargs.get('out') is not None:
        refuse(func, "with 'out' is not known to be right")
    a, b = argument(args, kwargs, 0, 'a', 'self'), argument(args, kwargs, 1, 'b', 'other')
    dims: Any = argument(args, kwargs, 2, 'dims', default=2)
    if 'dims_self' in kwargs or len(args) > 3 or isinstance(dims, Tensor):
        refuse(func, 'with dimensions in this form is not known to be right')
    if isinstance(dims, int):
        dims = range(-dims, 0), range(dims)
    of_a: list[Hashable] = [('a', i) for i in range(dim_of(a))]
    of_b: list[Hashable] = [('b', i) for i in range(dim_of(b))]
    pairs = [(i % len(of_a), j % len(of_b)) for i, j in zip(*dims, strict=True)]
    for i, j in pairs:
        of_b[j] = of_a[i]
    gone = {of_a[i] for i, _ in pairs}
    out = [each for each in (*of_a, *of_b) if each not in gone]
    given = [list(each) for each in dims]
    return contract(func, (a, b), (of_a, of_b), out, lambda *own: func(*own, dims=given))


@rule('einsum')
def _einsum(func: Any, args: Any, kwargs: Any) -> Any:
    """Letters as the user has them; those of ``...`` are numbers from the right."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    text, arrow, result = equation.replace(' ', '').partition('->')
    letters = [
        _spelled(each, dim_of(operand))
        for each, operand in zip(text.split(','), operands, strict=True)
    ]
    every = [each for of in letters for each in of]
    dots = sorted({each for each in every if isinstance(each, int)})
    if arrow:
        before, has_dots, after = result.partition('...')
        out = [*before, *(dots if has_dots else []), *after]
    else:
        out = [*dots, *sorted(e for e in every if isinstance(e, str) and every.count(e) == 1)]
    run = lambda *own: func(equation, *own)  # noqa: E731
    return contract(func, operands, letters, out, run, broadcasting=every)


def _spelled(text: str, num_dims: int) -> list[Hashable]:
    before, dots, after = text.partition('...')
    return [*before, *(range(len(before) + len(after) - num_dims, 0) if dots else []), *after]


@rule('chain_matmul linalg_multi_dot')
def _chain(func: Any, args: Any, kwargs: Any) -> Any:
    """From the left, after the products that sum over the rows."""
    if kwargs.get('out') is not None:
        refuse(func, "with 'out' is not known to be right")
    given = args if args else (kwargs['tensors'],)
    left = list(given[0] if isinstance(given[0], (tuple, list)) else given)
    place = 0
    while place + 1 < len(left):
        a, b = left[place : place + 2]
        is_sum = isinstance(a, Rows) and isinstance(b, Rows) and b._dim == 0
        if is_sum and a._dim == dim_of(a) - 1:
            left[place : place + 2] = [a @ b]
        place += 1
    return reduce(torch.matmul, left)


@rule('linalg_vecdot')
def _vecdot(func: Any, args: Any, kwargs: Any) -> Any:
    a, b = argument(args, kwargs, 0, 'x'), argument(args, kwargs, 1, 'y')
    if kwargs.get('out') is not None:
        refuse(func, "with 'out' is not known to be right")
    return (a.conj() * b).sum(argument(args, kwargs, 2, 'dim', default=-1))


@rule('cross linalg_cross')
def _cross(func: Any, args: Any, kwargs: Any) -> Any:
    """Along a dimension of size 3, which is the first of that size if none is given."""
    kwargs = dict(kwargs)
    first = args[0] if args else kwargs['input']
    is_of_linalg = name_of(func).startswith('linalg')
    given = argument(args, kwargs, 2, 'dim', default=-1 if is_of_linalg else None)
    sizes = whole_shape(first)
    if given is None and 3 not in sizes:
        raise RuntimeError('no dimension of size 3 in input')
    dim = sizes.index(3) if given is None else given % len(sizes)
    kwargs['dim'] = dim
    (*own,), kwargs, right, space = align(func, args[:2], kwargs)
    if dim == len(sizes) - right:
        refuse(func, 'along the rows of all ranks needs all rows in one place')
    with plainly():
        return as_rows(func(*own, **kwargs), right, space)


@rule('cdist')
def _cdist(func: Any, args: Any, kwargs: Any) -> Any:
    """Distances ``[..., i, j]`` of ``[..., i, k]`` and ``[..., j, k]``, all of `k` at once."""
    a, b = argument(args, kwargs, 0, 'x1'), argument(args, kwargs, 1, 'x2')
    of_a, of_b = _with_batch(dim_of(a), 'ik', ''), _with_batch(dim_of(b), 'jk', '')
    batch = list(range(-max(dim_of(a), dim_of(b), 2), -2))
    if rows_letter(func, (a, b), (of_a, of_b)) == 'k':
        refuse(func, 'along the rows of all ranks needs all rows in one place')
    rest = {key: value for key, value in kwargs.items() if key not in ('x1', 'x2')}
    run = lambda x, y: func(x, y, *args[2:], **rest)  # noqa: E731
    return contract(func, (a, b), (of_a, of_b), [*batch, 'i', 'j'], run, broadcasting=batch)


@rule('diagonal linalg_diagonal diag_embed')
def _diagonal(func: Any, args: Any, kwargs: Any) -> Any:
    """Of two dimensions that are not the rows', or into two."""
    rows = args[0] if args else kwargs.get('input', kwargs.get('A'))
    name, num_dims = name_of(func), dim_of(rows)
    embeds = name == 'diag_embed'
    defaults = (0, 1) if name == 'diagonal' else (-2, -1)
    dims = [argument(args, kwargs, 2 + i, f'dim{i + 1}', default=defaults[i]) for i in (0, 1)]
    gone = {each % (num_dims + embeds) for each in dims}
    if rows._dim in ({num_dims - 1} if embeds else gone):
        refuse(func, 'needs all rows in one place')
    with plainly():
        out = func(*args, **kwargs)
    if embeds:
        kept = [place for place in range(num_dims + 1) if place not in gone]
        return tag(out, kept[rows._dim], rows._space)
    return tag(out, rows._dim - sum(each < rows._dim for each in gone), rows._space)


@rule('kron block_diag cartesian_prod combinations meshgrid')
def _pairs(func: Any, args: Any, kwargs: Any) -> Any:
    refuse(func, EVERY_PAIR.partition(';')[0])


@rule('trace diag diagflat')
def _needs_all(func: Any, args: Any, kwargs: Any) -> Any:
    refuse(func, 'needs all rows in one place')


def _operands(
    func: Any, args: Any, kwargs: Any, names_a: tuple[str, ...], names_b: tuple[str, ...]
) -> tuple[Any, Any]:
    """The two operands of a function without options."""
    if len(args) + len(kwargs) != 2:
        refuse(func, 'with options is not known to be right')
    return argument(args, kwargs, 0, *names_a), argument(args, kwargs, 1, *names_b)
