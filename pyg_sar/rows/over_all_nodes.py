"""Functions over the nodes of all ranks, which take own rows, called with rows of the whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from pyg_sar import over_all_nodes as own
from pyg_sar.rows.attach import as_local
from pyg_sar.rows.rows import Rows, in_nested, tag
from pyg_sar.rows.space import Space

Function = TypeVar('Function', bound=Callable[..., Any])


def _of_rows(function: Function) -> Function:
    """A function that takes rows as well as the plain tensors of own rows."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        given: list[Rows] = []
        in_nested((args, kwargs), lambda v: given.append(v) if isinstance(v, Rows) else None)
        out = function(*as_local(args), **as_local(kwargs))
        return _as_rows(function.__name__, out, given) if given else out

    return call  # type: ignore[return-value]


def _as_rows(name: str, out: Any, given: list[Rows]) -> Any:
    first = given[0]
    if name in ('global_softmax', 'permute_rows'):
        return tag(out, first._dim, first._space)
    if name == 'rows' and len(given) > 1 and given[1]._dim < out.dim() and len(given) > 2:
        return tag(out, given[1]._dim, given[1]._space)
    if name == 'negative_sampling':
        return tag(out, 1, Space(out.size(1), what='negative edges'))
    return out


global_max = _of_rows(own.global_max)
global_mean = _of_rows(own.global_mean)
global_min = _of_rows(own.global_min)
global_softmax = _of_rows(own.global_softmax)
global_std = _of_rows(own.global_std)
global_sum = _of_rows(own.global_sum)
negative_sampling = _of_rows(own.negative_sampling)
permute_rows = _of_rows(own.permute_rows)
rows = _of_rows(own.rows)
