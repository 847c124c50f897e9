"""Functions along a dimension: they run on the own rows, if it is not the rows' own.

Over the rows softmax (:mod:`pyg_sar.rows.rules.numbers.softmax`) and topk
(:mod:`pyg_sar.rows.rules.numbers.places`) run over all ranks. The others need all rows in one
place: a vector is gathered, 8 bytes a row on every rank; more dimensions are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyg_sar.comm import agree
from pyg_sar.ground.nested import in_nested
from pyg_sar.rows.align import align, argument, dim_of, dims_of
from pyg_sar.rows.edges import node_ids
from pyg_sar.rows.over_ranks import all_rows, fetched
from pyg_sar.rows.registry import bare_name, is_in_place, name_of, rule
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.rules.numbers.without_rows import run

_LAST, _ALL = -1, None

_PLACE_AND_DEFAULT: dict[str, tuple[int, Any]] = {
    **dict.fromkeys(['softmax', 'log_softmax', 'softmin', 'special_softmax'], (1, _LAST)),
    'special_log_softmax': (1, _LAST),
    **dict.fromkeys(['sort', 'argsort', 'cumsum', 'cumprod', 'cummax', 'cummin'], (1, _LAST)),
    **dict.fromkeys(['logcumsumexp', 'glu'], (1, _LAST)),
    **dict.fromkeys(['flip', 'fft_fftshift', 'fft_ifftshift'], (1, _ALL)),
    'linalg_matrix_norm': (2, (-2, -1)),
    'gumbel_softmax': (4, _LAST),
    'msort': (9, 0),
    'topk': (2, _LAST),
    'roll': (2, _ALL),
    'rot90': (2, (0, 1)),
    'fliplr': (9, 1),
    'flipud': (9, 0),
    'diff': (2, _LAST),
    'trapezoid': (9, _LAST),
    'trapz': (9, _LAST),
    'cumulative_trapezoid': (9, _LAST),
    **dict.fromkeys([f'fft_{i}{r}fft' for i in ('', 'i') for r in ('', 'r', 'h')], (2, _LAST)),
    **dict.fromkeys([f'fft_{i}{r}fft2' for i in ('', 'i') for r in ('', 'r', 'h')], (2, (-2, -1))),
    **dict.fromkeys([f'fft_{i}{r}fftn' for i in ('', 'i') for r in ('', 'r', 'h')], (2, _ALL)),
}
"""Where the dimension stands among the arguments, and which one it is if it is not given."""

over_rows: dict[str, Callable[[Any, Rows, Any, Any], Any]] = {}
"""What is computed over the rows of all ranks: ``f(func, rows, args, kwargs)``."""


@rule(' '.join(_PLACE_AND_DEFAULT))
def _along(func: Any, args: Any, kwargs: Any) -> Any:
    name = bare_name(func)
    rows = args[0] if args else kwargs.get('input')
    if not isinstance(rows, Rows):
        refuse(func)
    num_dims = dim_of(rows)
    dims = _dims(name, num_dims, args, kwargs)
    if dims is None or rows._dim in dims:
        over = over_rows.get(name, of_a_vector)
        if is_in_place(name_of(func)):
            refuse(func, 'over the rows of all ranks needs all rows in one place')
        with plainly():
            return over(func, rows, args, kwargs)
    dim, space = rows._dim, rows._space
    if any(isinstance(each, Tensor) for each in (*args[1:], *kwargs.values())):
        args, kwargs, _, space = align(func, args, kwargs)
    with plainly():
        if name == 'gumbel_softmax':
            with own_draws(rows.device):
                return tag(func(*args, **kwargs), dim, space)

        def dim_of_result(out: Tensor) -> int:
            # A dimension less (unbind, trapezoid, a norm) moves rows that stand behind it.
            return dim - (sum(each < dim for each in dims) if out.dim() < num_dims else 0)

        return run(func, args, kwargs, space, num_dims - dim, dim_of_result)


def of_a_vector(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Runs a function on a whole vector, gathered on every rank; the result is plain."""
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    if dim_of(rows) > 1 or len(tensors) > 1:
        refuse(func, 'over the rows of all ranks needs all rows in one place')
    everything = all_rows(rows)
    args, kwargs = in_nested((args, kwargs), lambda each: everything if each is rows else each)
    return func(*args, **kwargs)


def _dims(name: str, num_dims: int, args: Any, kwargs: Any) -> list[int] | None:
    place, default = _PLACE_AND_DEFAULT[name]
    given = argument(args, kwargs, place, 'dim', 'dims')
    if name == 'flip' and isinstance(given, int):
        given = args[1:]
    if given is None and name in ('softmax', 'log_softmax', 'softmin'):
        given = 0 if num_dims in (1, 3) else 1  # what torch.nn.functional takes then
    if given is None and default is not None:
        given = default
    if given is None and name.endswith('n') and kwargs.get('s', args[1:2] or None) is not None:
        sizes = argument(args, kwargs, 1, 's')
        given = None if sizes is None else tuple(range(-len(sizes), 0))
    return dims_of(given, num_dims)


def _in_other_order(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Rows one after another, or from the last to the first: each rank gets its own ones."""
    name, space, dim = name_of(func), rows._space, rows._dim
    dims = _dims(name, dim_of(rows), args, kwargs)
    if dims != [dim] and dim_of(rows) > 1:
        return of_a_vector(func, rows, args, kwargs)
    places = torch.arange(space.total, device=rows.device)
    shift = argument(args, kwargs, 1, 'shifts')
    moved = places.roll(shift) if name == 'roll' else places.flip(0)
    if not space.has_ids():
        refuse(func, f'is not known where the rows lie ({space!r})')
    ids = moved[space.ids(rows.device)]
    return tag(fetched(rows, ids).movedim(0, dim), dim, space)


over_rows.update(roll=_in_other_order, flip=_in_other_order, flipud=_in_other_order)


def _sorted(func: Any, rows: Rows, args: Any, kwargs: Any) -> Any:
    """Equal numbers stay where they are, as the ``batch`` of one graph; others are gathered."""
    name, space = name_of(func), rows._space
    if dim_of(rows) == 1 and space.has_ids() and _are_equal(rows):
        ids = space.ids(rows.device)
        places = torch.arange(space.own, device=rows.device)
        order = node_ids(ids.clone(), 0, space, space, places, None)
        values = tag(plain(rows).clone(), 0, space)
        return order if name == 'argsort' else torch.return_types.sort((values, order))
    return of_a_vector(func, rows, args, kwargs)


def _are_equal(rows: Rows) -> bool:
    own = plain(rows)
    first = own[:1].tolist() if bool((own == own[:1]).all()) else [None, None]
    known = [each for each in agree(first) if each]
    return all(each == known[0] and len(each) == 1 for each in known)


over_rows.update(sort=_sorted, argsort=_sorted)
