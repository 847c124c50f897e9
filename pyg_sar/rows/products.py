"""Products: row by row, or with the rows summed over all ranks.

The dimensions of the factors have letters, as einsum has them, and the rows have one. If the result
has that letter, it is computed row by row. If not, every rank sums over its own rows, and the sums
of all ranks are added up. Where rows of two letters meet (``q @ k.t()``, all pairs), those of one
factor stay, and every rank has all rows of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ops.linear import linear
from pyg_sar.rows.adjacency import product, scattered
from pyg_sar.rows.align import dim_of, named_rule, own_rows
from pyg_sar.rows.one_loss import for_rows, sum_of_ranks
from pyg_sar.rows.over_ranks import in_one_place, on_all_rows
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, rule
from pyg_sar.rows.rows import Rows, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding

Letters = Sequence[Hashable]


def contract(
    func: Any,
    operands: Sequence[Tensor],
    letters: Sequence[Letters],
    out: Letters,
    run: Callable[..., Any],
    *,
    broadcasting: Collection[Hashable] = (),
) -> Any:
    """What ``run(*operands)`` is of the whole: rows, or plain if the result has no rows.

    `letters` has one for each dimension of every operand, some of which are rows; `out` has those
    of the result. Of letters in `broadcasting` an operand may have one where others have more.
    """
    for tensor in operands:
        if tensor.layout != torch.strided:
            refuse(func, f'and a tensor of layout {tensor.layout} is not known to be right')
    kept = kept_letter(func, operands, letters, out)
    if kept is None:
        refuse(func, 'of these shapes is not known to be right')
    letter, sharding = kept
    own = []
    for tensor, of in zip(operands, letters, strict=True):
        if letter not in of:
            own.append(for_rows(in_one_place(func, tensor)))
            continue
        dim = list(of).index(letter)
        if isinstance(tensor, Rows) and tensor._dim != dim:
            tensor = in_one_place(func, tensor)
        is_one = not isinstance(tensor, Rows) and tensor.size(dim) == 1 and sharding.total != 1
        if is_one and letter not in broadcasting:
            refuse(func, f'({sharding!r}) and a plain tensor with one row there has no meaning')
        own.append(own_rows(func, tensor, dim, sharding))
    with plainly():
        result = run(*own)
        return tag(result, out.index(letter), sharding) if letter in out else sum_of_ranks(result)


def kept_letter(
    func: Any, operands: Sequence[Tensor], letters: Sequence[Letters], out: Letters
) -> tuple[Hashable, Sharding] | None:
    """The letter of the rows that stay, and their sharding; None if no operand has rows.

    Of several it is the first that the result has.
    """
    of_rows: dict[Hashable, Sharding] = {}
    for tensor, of in zip(operands, letters, strict=True):
        if isinstance(tensor, Rows) and tensor._dim < len(of):  # others are errors of `run`
            of_rows.setdefault(of[tensor._dim], tensor._sharding)
    for letter in of_rows:
        if any(list(of).count(letter) > 1 for of in letters):
            refuse(func, 'of a diagonal over the rows is not known to be right')
    kept = sorted(of_rows, key=lambda letter: letter not in out)[:1]
    return (kept[0], of_rows[kept[0]]) if kept else None


def _in_order(args: Any, kwargs: Any) -> list[Any]:
    """All operands; by name the first is called input, the others have names in their order."""
    return [*args, *(kwargs[name] for name in sorted(kwargs, key=lambda n: (n != 'input', n)))]


def _operands(func: Any, args: Any, kwargs: Any) -> Any:
    """The two operands of a function without options."""
    if len(args) + len(kwargs) != 2:
        refuse(func, 'with options is not known to be right')
    return _in_order(args, kwargs)


@rule('matmul rmatmul mm bmm linalg_matmul')
@rule('mv dot vdot sparse_mm spmm')
def _matmul(func: Any, args: Any, kwargs: Any) -> Any:
    """``[..., i, k] @ [..., k, j]``, or vectors ``[k]``."""
    is_reduced = bare_name(func) == 'sparse_mm' and len(args) == 3 and not kwargs
    a, b = args[:2] if is_reduced else _operands(func, args, kwargs)
    if bare_name(func) == 'matmul' and _are_by_weights(a, b):
        return _linear(func, (a, b.t()), {})
    run: Callable[..., Any] = func
    if name_of(func) == '__rmatmul__':
        if not isinstance(args[1], Tensor):
            return NotImplemented
        a, b, run = b, a, torch.matmul
    if not isinstance(a, Rows) and a.layout != torch.strided:
        return _of_sparse(func, a, b, *args[2:])
    of_a, of_b = _with_batch(dim_of(a), 'ik', 'k'), _with_batch(dim_of(b), 'kj', 'k')
    batch = list(range(-max(dim_of(a), dim_of(b), 2), -2))
    out = [*batch, *of_a[-2:-1], *([of_b[-1]] if len(of_b) > 1 else [])]
    broadcasting = batch if bare_name(func).endswith('matmul') else []
    of = of_a, of_b
    return contract(func, (a, b), of, out, run, broadcasting=broadcasting)


@named_rule('outer ger')
def _outer(func: Any, input: Any, vec2: Any) -> Any:
    return contract(func, (input, vec2), ('i', 'j'), ('i', 'j'), func)


def _are_by_weights(a: Any, b: Any) -> bool:
    """Whether rows are multiplied by a plain matrix, the same for all of them."""
    is_plain = isinstance(b, Tensor) and not isinstance(b, Rows) and b.layout == torch.strided
    return is_plain and isinstance(a, Rows) and b.dim() == 2 and a._dim < dim_of(a) - 1


def _of_sparse(func: Any, matrix: Tensor, rows: Rows, *options: Any) -> Any:
    """A plain sparse matrix of the whole by rows: its entries are edges between them."""
    sharding = rows._sharding
    if rows._dim or matrix.dim() != 2 or dim_of(rows) > 2:
        refuse(func, 'and a sparse matrix is known for matrices of rows')
    if matrix.size(1) != sharding.total:
        raise RuntimeError(f'{tuple(matrix.shape)} @ {tuple(rows.shape)}: the sizes do not fit')
    if matrix.size(0) != matrix.size(1):
        instead = '' if options else 'write B @ pyg_sar.gather(x)'
        refuse(func, 'and a sparse matrix that is not square is not known to be right', instead)
    return product(func, scattered(func, matrix, sharding, sharding), rows, *options)


def _with_batch(num_dims: int, matrix: str, vector: str) -> list[Hashable]:
    """Letters of a matrix with dimensions in front, which have numbers from the right."""
    return [*range(-num_dims, -2), *matrix] if num_dims > 1 else [*vector[:num_dims]]


@rule('linear')
def _linear(func: Any, args: Any, kwargs: Any) -> Any:
    """Rows and plain parameters at once; anything else by the rule for products."""
    x = args[0] if args else None
    if isinstance(x, Rows) and not kwargs and not any(isinstance(arg, Rows) for arg in args[1:]):
        with plainly():
            weight, bias = args[1], args[2] if len(args) > 2 else None
            is_usual = weight.layout == torch.strided and x._dim < x.dim() - 1
            if is_usual and weight.dim() == 2 and (bias is None or bias.dim() == 1):
                own = Tensor.as_subclass(x, Tensor)  # a saved tensor has no rows
                out: Any = linear(own, for_rows(weight), for_rows(bias))
                out.__class__ = Rows  # as `tag` does, with as many rows as there were
                out._dim, out._sharding = x._dim, x._sharding
                return out
    return _of_any_linear(func, args, kwargs)


@named_rule('any_linear')
def _of_any_linear(func: Any, input: Any, weight: Any, bias: Any = None) -> Any:
    """``[..., k] @ [o, k].t() + [o]``, or a weight ``[k]``."""
    batch: list[Hashable] = list(range(dim_of(input) - 1))
    of_out = ['o'] if dim_of(weight) > 1 else []
    letters = [[*batch, 'k'], [*of_out, 'k']]
    return _with_bias(func, (input, weight), letters, [*batch, *of_out], bias)


@named_rule('bilinear')
def _bilinear(func: Any, input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """``[..., i]``, ``[..., j]`` and a weight ``[o, i, j]``, and a bias ``[o]``."""
    batch: list[Hashable] = list(range(dim_of(input1) - 1))
    letters = [[*batch, 'i'], [*batch, 'j'], ['o', 'i', 'j']]

    def run(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
        if 0 not in (*x.shape, *y.shape, *weight.shape):
            return func(x, y, weight, bias)
        # Of no rows torch has no gradient at all, and all ranks have to enter the backward.
        out = torch.einsum('...i,oij,...j->...o', x, weight, y)
        return out if bias is None else out + bias

    return _with_bias(func, (input1, input2, weight), letters, [*batch, 'o'], bias, run)


def _with_bias(
    func: Any, operands: Any, letters: Any, out: Any, bias: Tensor | None, run: Any = None
) -> Any:
    """Adds a bias once: where a product is summed over the ranks, after the sum."""
    run = run or func
    if bias is None:
        return contract(func, operands, letters, out, run)
    of_bias = out[-dim_of(bias) :] if dim_of(bias) else []
    every, of_every = (*operands, bias), [*letters, of_bias]
    kept = kept_letter(func, every, of_every, out)
    if kept and kept[0] in out:
        return contract(func, every, of_every, out, run, broadcasting=of_bias)
    return contract(func, operands, letters, out, run) + bias


_PRODUCT: dict[str, Callable[..., Any]] = {
    'addmm': torch.mm,
    'addmv': torch.mv,
    'baddbmm': torch.bmm,
}


@rule(' '.join(_PRODUCT))
def _added(func: Any, args: Any, kwargs: Any) -> Any:
    """``beta * input + alpha * product``; what `input` holds has no meaning with a `beta` of 0."""
    alpha, beta = kwargs.get('alpha', 1), kwargs.get('beta', 1)
    tensors = _in_order(args, {k: v for k, v in kwargs.items() if k not in ('alpha', 'beta')})
    if not all(isinstance(tensor, Tensor) for tensor in tensors):
        refuse(func, 'in its old form is not known to be right')
    to, a, b = tensors
    product = _PRODUCT[bare_name(func)](a, b)
    product = product if alpha == 1 else product * alpha
    if beta != 0:
        product = product + (to if beta == 1 else to * beta)
    return to.copy_(product) if is_in_place(name_of(func)) else product


@rule('einsum')
def _einsum(func: Any, args: Any, kwargs: Any) -> Any:
    """Letters as the user has them; those of ``...`` are numbers from the right."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    text, arrow, result = equation.replace(' ', '').partition('->')
    letters = [
        _spelled(word, dim_of(operand))
        for word, operand in zip(text.split(','), operands, strict=True)
    ]
    every = [letter for of in letters for letter in of]
    dots = sorted({letter for letter in every if isinstance(letter, int)})
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


_MODE = 'use_mm_for_euclid_dist_if_necessary'


@named_rule('cdist')
def _cdist(func: Any, x1: Any, x2: Any, p: float = 2.0, compute_mode: Any = _MODE) -> Any:
    """Distances ``[..., i, j]`` of ``[..., i, k]`` and ``[..., j, k]``, all of `k` at once."""
    of_a, of_b = _with_batch(dim_of(x1), 'ik', ''), _with_batch(dim_of(x2), 'jk', '')
    batch = list(range(-max(dim_of(x1), dim_of(x2), 2), -2))
    if any(isinstance(x, Rows) and x._dim == dim_of(x) - 1 for x in (x1, x2)):
        return on_all_rows(func, x1, x2, p, compute_mode)
    run = lambda x, y: func(x, y, p, compute_mode)  # noqa: E731
    return contract(func, (x1, x2), (of_a, of_b), [*batch, 'i', 'j'], run, broadcasting=batch)
