"""Products: row by row, or summed over the rows of all ranks; never every row with every row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.align import argument, dim_of, found, own_rows
from pyg_sar.rows.over_ranks import sum_of_ranks
from pyg_sar.rows.registry import name_of, rule
from pyg_sar.rows.replicated import met
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.space import Space

_ALL_PAIRS = (
    'would pair every row with every row: sums over rows first, q @ (k.t() @ v), or '
    'torch.nn.functional.scaled_dot_product_attention'
)


@rule('linear')
def _linear(func: Any, args: Any, kwargs: Any) -> Any:
    rows, weight = argument(args, kwargs, 0, 'input'), argument(args, kwargs, 1, 'weight')
    bias = argument(args, kwargs, 2, 'bias')
    if not isinstance(rows, Rows) or isinstance(weight, Rows) or isinstance(bias, Rows):
        out = rows @ (weight.t() if dim_of(weight) == 2 else weight)
        return out if bias is None else out + bias
    if rows._dim == dim_of(rows) - 1:
        out = rows @ (weight.t() if dim_of(weight) == 2 else weight)
        return out if bias is None else out + bias
    with plainly():
        out = func(rows, met(weight), None if bias is None else met(bias))
        return tag(out, rows._dim, rows._space)


@rule('matmul rmatmul mm bmm mv dot vdot inner')
def _matmul(func: Any, args: Any, kwargs: Any) -> Any:
    a, b = (
        argument(args, kwargs, 0, 'input', 'self'),
        argument(args, kwargs, 1, 'other', 'mat2', 'vec', 'tensor'),
    )
    name = name_of(func)
    if name == '__rmatmul__':
        a, b = b, a
    if any(each.layout != torch.strided for each in (a, b)):
        refuse(func, 'and a sparse matrix is not known to be right')
    if name == 'vdot':
        a = a.conj()
    if name == 'inner' and dim_of(b) > 1:
        b = b.transpose(-1, -2)
    letters = _letters(dim_of(a), dim_of(b))
    return product(func, letters, [a, b], torch.matmul)


def _letters(num_a: int, num_b: int) -> tuple[list[str], str]:
    """What matmul does, in the letters of einsum."""
    batch = 'abcdefgh'[: max(num_a, num_b, 2) - 2]
    left = ('' if num_a == 1 else batch[len(batch) - (num_a - 2) :] + 'x') + 'y'
    right = 'y' if num_b == 1 else batch[len(batch) - (num_b - 2) :] + 'yz'
    out = batch + ('x' if num_a > 1 else '') + ('z' if num_b > 1 else '')
    return [left, right], out


def product(func: Any, letters: Any, operands: list[Tensor], compute: Any) -> Any:
    """A product of tensors whose dimensions have letters: the rows' is kept, or summed over."""
    terms, out = letters
    named = {t[r._dim] for t, r in zip(terms, operands, strict=True) if isinstance(r, Rows)}
    rows = found(operands)
    if len(named) != 1:
        refuse(func, _ALL_PAIRS)
    letter = named.pop()
    space = rows[0]._space
    for other in rows[1:]:
        if not space.is_same(other._space):
            refuse(func, f'of {space!r} and of {other._space!r} has no meaning')
    given = []
    for term, each in zip(terms, operands, strict=True):
        if isinstance(each, Rows):
            given.append(plain(each))
        elif letter in term:
            given.append(_own(func, each, term.index(letter), space))
        else:
            given.append(met(each))
    with plainly():
        made = compute(*given)
        if letter not in out:
            return sum_of_ranks(made)
        return tag(made, out.index(letter), space)


def _own(func: Any, tensor: Tensor, dim: int, space: Space) -> Tensor:
    own = own_rows(func, tensor, dim, space)
    with plainly():
        if own.size(dim) != space.own and own.size(dim) == 1:
            shape = list(own.shape)
            shape[dim] = space.own
            return own.expand(shape)
    return own


@rule('addmm addmv addbmm baddbmm addr')
def _added(func: Any, args: Any, kwargs: Any) -> Any:
    start, a, b = args[:3]
    beta, alpha = kwargs.get('beta', 1), kwargs.get('alpha', 1)
    if name_of(func).endswith('_'):
        refuse(func, 'in place is not known to be right')
    if name_of(func) == 'addr':
        made = torch.outer(a, b)
    else:
        made = a @ b
        made = made.sum(0) if name_of(func) == 'addbmm' else made
    made = made if alpha == 1 else alpha * made
    return made + (start if beta == 1 else beta * start) if beta else made


@rule('outer ger')
def _outer(func: Any, args: Any, kwargs: Any) -> Any:
    a, b = args[0], argument(args, kwargs, 1, 'vec2')
    return product(func, (['x', 'z'], 'xz'), [a, b], torch.outer)


@rule('einsum')
def _einsum(func: Any, args: Any, kwargs: Any) -> Any:
    text, *operands = args
    if not isinstance(text, str):
        refuse(func, 'in the form of lists is not known to be right')
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    text = text.replace(' ', '')
    given, arrow, out = text.partition('->')
    terms = given.split(',')
    if '...' in text:
        free = [c for c in 'ABCDEFGHIJKLMNOPQRSTUVWXYZ' if c not in text]
        wide = [
            dim_of(t) - len(term.replace('...', ''))
            for t, term in zip(operands, terms, strict=True)
        ]
        most = max(w for w, term in zip(wide, terms, strict=True) if '...' in term)
        dots = ''.join(free[:most])
        terms = [term.replace('...', dots[most - w :]) for term, w in zip(terms, wide, strict=True)]
        out = out.replace('...', dots) if arrow else dots + _alone(terms, dots)
    elif not arrow:
        out = _alone(terms, '')
    for term, each in zip(terms, operands, strict=True):
        if isinstance(each, Rows) and term.count(term[each._dim]) > 1:
            refuse(func, 'of a diagonal over the rows')
    equation = f'{",".join(terms)}->{out}'
    return product(func, (terms, out), operands, lambda *given: torch.einsum(equation, *given))


def _alone(terms: list[str], but: str) -> str:
    """Letters that stand once, in the order of the alphabet."""
    every = ''.join(terms)
    return ''.join(sorted(c for c in set(every) if every.count(c) == 1 and c not in but))


@rule('tensordot')
def _tensordot(func: Any, args: Any, kwargs: Any) -> Any:
    a, b = args[:2]
    dims = argument(args, kwargs, 2, 'dims', default=2)
    num_a, num_b = dim_of(a), dim_of(b)
    if isinstance(dims, int):
        left, right = list(range(num_a - dims, num_a)), list(range(dims))
    else:
        left, right = ([d % n for d in each] for each, n in zip(dims, (num_a, num_b), strict=True))
    names = iter('abcdefghijklmnopqrstuvwxyz')
    first = [next(names) for _ in range(num_a)]
    second = [next(names) for _ in range(num_b)]
    for i, j in zip(left, right, strict=True):
        second[j] = first[i]
    out = [c for i, c in enumerate(first) if i not in left]
    out += [c for j, c in enumerate(second) if j not in right]
    equation = f'{"".join(first)},{"".join(second)}->{"".join(out)}'
    return torch.einsum(equation, a, b)


@rule('bilinear')
def _bilinear(func: Any, args: Any, kwargs: Any) -> Any:
    a, b, weight = args[:3]
    bias = argument(args, kwargs, 3, 'bias')
    if isinstance(weight, Rows) or isinstance(bias, Rows):
        refuse(func)
    made = torch.einsum('...i,oij,...j->...o', a, weight, b)
    return made if bias is None else made + bias


@rule('multi_dot linalg_multi_dot chain_matmul')
def _chain(func: Any, args: Any, kwargs: Any) -> Any:
    matrices = args[0] if isinstance(args[0], (list, tuple)) else args
    made = matrices[0]
    for each in matrices[1:]:
        made = made @ each
    return made
