"""One function on rows of three ranks, and on the whole: results and gradients side by side.

What is rows is chosen by the caller. Any choice has one meaning, that of the whole; so whatever a
function does with it, it is right or refused.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from pyg_sar.comm.ranks import rank
from pyg_sar.comm.threads import run_threads
from pyg_sar.rows.one_loss import sum_of_ranks
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.rows.sharding import Sharding

NUM_RANKS = 3
SAYS_REFUSED = 'that are spread over the ranks'


class Case(NamedTuple):
    """A call: ``function(*args, **kwargs)`` with tensors of the whole, some in lists."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


Tagging = tuple[int | None, ...]
"""For every tensor of a case the dimension of its rows, or None for a plain one."""


@dataclass
class Verdict:
    """``right``, ``refused``, ``error`` or ``WRONG``, and why."""

    status: str
    why: str = ''
    has_rows: bool = False


class Wrong(Exception):
    """What differs from the whole."""


@dataclass
class Whole:
    """What one process computes."""

    leaves: list[Any]
    weights: list[Tensor | None]
    grads: list[Tensor | None]
    tolerance: float
    is_in_place: bool


def tensors_of(case: Case) -> list[Tensor]:
    """Those among its arguments."""
    return [t for t in tree_leaves((case.args, case.kwargs)) if isinstance(t, Tensor)]


def whole_of(case: Case, *, with_grads: bool = True) -> Whole:
    """Results, and the gradients of a fixed sum of them, on one process."""
    tensors = tensors_of(case)
    leaves = [_leaf(t.detach().clone(), with_grads) for t in tensors]
    given = [t.clone() for t in leaves]
    result = _called(case, given)
    out = tree_leaves(result)
    weights = [_weights(each, i) for i, each in enumerate(out)]
    terms = [_pairing(t, w) for t, w in zip(out, weights, strict=True) if takes_grad(t)]
    grads: list[Tensor | None] = [None] * len(tensors)
    asked = [t for t in leaves if t.requires_grad]
    if terms and asked:
        found = iter(torch.autograd.grad(sum(terms), asked, allow_unused=True))
        grads = [next(found) if t.requires_grad else None for t in leaves]
    tolerance = max(_tolerance(t) for t in (*tensors, *out))
    plain = [each.detach() if isinstance(each, Tensor) else each for each in out]
    return Whole(plain, weights, grads, tolerance, result is given[0])


def verdict_of(
    case: Case, tagging: Tagging, whole: Whole, *, has_empty: bool, is_random: bool = False
) -> Verdict:
    """What becomes of a case whose tensors are rows as `tagging` says."""

    def on_rank() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            try:
                return _on_rank(case, tagging, whole, has_empty, is_random)
            except Wrong as error:
                return Verdict('WRONG', f'{error}')
            except Exception as error:
                is_refused = isinstance(error, ValueError) and SAYS_REFUSED in str(error)
                return Verdict('refused' if is_refused else 'error', f'{error!r}'[:300])

    try:
        of_ranks = run_threads(on_rank, NUM_RANKS)
    except Exception as error:
        return Verdict('error', f'{error!r}'[:300])
    statuses = {each.status for each in of_ranks}
    for status in ('WRONG', 'error'):
        if status in statuses:
            return next(each for each in of_ranks if each.status == status)
    if len(statuses) > 1:
        return Verdict('WRONG', f'ranks differ: {[each.status for each in of_ranks]}')
    verdict: Verdict = of_ranks[0]
    return verdict


def own_ids(total: int, rank: int, *, has_empty: bool) -> Tensor:
    """Which rows a rank has: uneven, not in order, and none on rank 1 if asked for."""
    order = torch.randperm(total, generator=torch.Generator().manual_seed(total))
    first = total if total < 2 else math.ceil(total / 2)
    second = first if has_empty else first + math.ceil((total - first) / 2)
    return (order[:first], order[first:second], order[second:])[rank]


def _on_rank(
    case: Case, tagging: Tagging, whole: Whole, has_empty: bool, is_random: bool
) -> Verdict:
    @functools.cache
    def sharding_of(total: int) -> Sharding:
        ids = own_ids(total, rank(), has_empty=has_empty)
        return Sharding(len(ids), what='rows', ids=ids, total=total)

    tensors = tensors_of(case)
    leaves: list[Tensor] = []
    with plainly():
        for tensor, dim, grad in zip(tensors, tagging, whole.grads, strict=True):
            value, takes = tensor.detach().clone(), grad is not None
            if dim is None:
                leaves.append(_leaf(value, takes))
            else:
                sharding = sharding_of(value.size(dim))
                own = value.index_select(dim, sharding.ids(value.device))
                leaves.append(tag(_leaf(own, takes), dim, sharding))
        given = [
            t.clone() if dim is None else tag(plain(t).clone(), dim, t._sharding)  # type: ignore[attr-defined]
            for t, dim in zip(leaves, tagging, strict=True)
        ]
    out = tree_leaves(_called(case, given))
    verdict = Verdict('right', has_rows=any(isinstance(each, Rows) for each in out))
    if is_random:
        _check_random(out, whole)
        return verdict
    terms = _check_results(out, whole)
    asked = [t for t in leaves if t.requires_grad]
    if not asked:
        return verdict
    # Backward ends in one place on all ranks, whatever of it is known to be connected.
    loss = sum_of_ranks(torch.stack([*terms, torch.zeros((), dtype=torch.float64)]).sum())
    loss = loss + _plain_terms(out, whole)
    if not loss.requires_grad:
        raise Wrong('no gradient')
    found = iter(torch.autograd.grad(loss, asked, allow_unused=True))
    for i, (leaf, own) in enumerate(zip(leaves, whole.grads, strict=True)):
        if own is None:
            continue
        grad = next(found)
        with plainly():
            if isinstance(leaf, Rows):
                own = own.index_select(leaf._dim, leaf._sharding.ids(own.device))
            grad = torch.zeros_like(own) if grad is None else plain(grad)
            why = difference(grad, own, whole.tolerance)
        if why:
            raise Wrong(f'gradient of tensor {i}: {why}')
    return verdict


def _called(case: Case, tensors: list[Tensor]) -> Any:
    left = iter(tensors)
    args, kwargs = tree_map_only(Tensor, lambda _: next(left), (case.args, case.kwargs))
    return case.function(*args, **kwargs)


def _check_results(out: list[Any], whole: Whole) -> list[Tensor]:
    """Compares them, and gives what the loss has of those that are rows."""
    terms: list[Tensor] = []
    if len(out) != len(whole.leaves):
        raise Wrong(f'{len(out)} results instead of {len(whole.leaves)}')
    for i, (made, want) in enumerate(zip(out, whole.leaves, strict=True)):
        if not isinstance(want, Tensor):
            if made is not want and made != want and want == want:
                raise Wrong(f'result {i}: {made!r} instead of {want!r}')
            continue
        if not isinstance(made, Tensor):
            raise Wrong(f'result {i}: no tensor')
        with plainly():
            if isinstance(made, Rows):
                dim, sharding = made._dim, made._sharding
                if not 0 <= dim < want.dim() or sharding.total != want.size(dim):
                    raise Wrong(f'result {i}: {sharding!r} in dimension {dim}')
                if not sharding.has_ids():
                    raise Wrong(f'result {i}: rows without ids')
                ids, weight = sharding.ids(want.device), whole.weights[i]
                want = want.index_select(dim, ids)
                if weight is not None and takes_grad(made):
                    terms.append(_pairing(plain(made), weight.index_select(dim, ids)))
            why = difference(plain(made), want, whole.tolerance)
        if why:
            raise Wrong(f'result {i}: {why}')
    return terms


def _plain_terms(out: list[Any], whole: Whole) -> Any:
    with plainly():
        return sum(
            _pairing(each, weight)
            for each, weight in zip(out, whole.weights, strict=True)
            if takes_grad(each) and not isinstance(each, Rows)
        )


def _check_random(out: list[Any], whole: Whole) -> None:
    """Of random numbers kind and shape are compared, and what is drawn next."""
    for i, (made, want) in enumerate(zip(out, whole.leaves, strict=True)):
        if isinstance(want, Tensor) and (made.shape, made.dtype) != (want.shape, want.dtype):
            raise Wrong(f'result {i}: {tuple(made.shape)}, {made.dtype}')
    following = torch.rand((), dtype=torch.float64)
    if abs(float(sum_of_ranks(following) / following) - NUM_RANKS) > 1e-9:
        raise Wrong('what is drawn next differs between the ranks')


def takes_grad(value: Any) -> bool:
    """Whether a result has a history that is compared."""
    return isinstance(value, Tensor) and value.requires_grad


def _leaf(value: Tensor, takes: bool) -> Tensor:
    return value.requires_grad_(takes and (value.is_floating_point() or value.is_complex()))


def _weights(value: Any, number: int) -> Tensor | None:
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    generator = torch.Generator().manual_seed(number)
    return torch.rand(value.shape, dtype=torch.float64, generator=generator) + 0.5


def _pairing(value: Tensor, weight: Tensor | None) -> Tensor:
    assert weight is not None
    parts = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value.unsqueeze(-1)
    scale = torch.tensor([1.0, 0.7])[: parts.size(-1)]
    return (parts.double().nan_to_num(0.0, 0.0, 0.0) * weight.unsqueeze(-1) * scale).sum()


def _tolerance(value: Any) -> float:
    kind = value.dtype if isinstance(value, Tensor) else None
    if kind is None or not (kind.is_floating_point or kind.is_complex):
        return 1e-8
    return max(1e-8, 20 * torch.finfo(kind).eps)


def difference(made: Tensor, want: Tensor, tolerance: float, *, has_values: bool = True) -> str:
    """What differs in shape, dtype, layout or values; nothing if they are equal."""
    if made.shape != want.shape:
        return f'shape {tuple(made.shape)} instead of {tuple(want.shape)}'
    for a, b in ((made.dtype, want.dtype), (made.layout, want.layout)):
        if a != b:
            return f'{a} instead of {b}'
    if not has_values:
        return ''
    made, want = made.detach(), want.detach()
    if want.is_floating_point() or want.is_complex():
        is_equal = torch.allclose(made, want, tolerance, tolerance, equal_nan=True)
    else:
        is_equal = torch.equal(made, want)
    if is_equal:
        return ''
    return f'{made.flatten()[:4].tolist()} instead of {want.flatten()[:4].tolist()}'
