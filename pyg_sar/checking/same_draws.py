"""Random numbers that are the same for the same row of the small graph in every run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.checking.view import View, rows_of

DRAWS = {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.bernoulli, torch.normal),
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.multinomial, torch.poisson),
    *(Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.random_, Tensor.exponential_),
    *(Tensor.bernoulli, Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_, Tensor.multinomial),
}


def same_draw(
    func: Any, args: Any, kwargs: dict[str, Any], out: Tensor, view: View, number: int
) -> Tensor:
    """Numbers of the same distribution as those that were drawn, one for every row.

    ``func(*args, **kwargs)`` has drawn `out`. How many draws there were before, `number`, seeds
    this one.
    """
    found = rows_of(out, view) if out.dim() else None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(number)
        if found is None:
            return _again(func, args, kwargs, out, tuple(out.shape), None)
        dim, rows = found[0], view.rows_of(found[1])
        shape = list(out.shape)
        shape[dim] = rows.num_rows
        return _again(func, args, kwargs, out, tuple(shape), (dim, rows.ids))


def _again(
    func: Any,
    args: Any,
    kwargs: dict[str, Any],
    out: Tensor,
    shape: tuple[int, ...],
    taken: tuple[int, Tensor] | None,
) -> Tensor:
    """The same draw for the whole small graph, and of it the rows of this run."""
    name = func.__name__
    if name.endswith('_') and not name.startswith('_'):  # in place
        values = func(torch.empty(shape, dtype=out.dtype), *args[1:], **kwargs)
        out.copy_(values if taken is None else values.index_select(*taken))
        return out
    if name.startswith('randn'):
        values = torch.randn(shape, dtype=torch.float64)
    elif name.startswith('randint'):
        bounds = [arg for arg in args if type(arg) is int]
        high = kwargs.get('high', bounds[-1] if bounds else 1)
        low = kwargs.get('low', bounds[0] if len(bounds) > 1 else 0)
        values = torch.randint(low, high, shape, dtype=torch.int64)
    elif name in ('rand', 'rand_like', 'bernoulli'):
        values = torch.rand(shape, dtype=torch.float64)
    else:
        return out
    if taken is not None:
        values = values.index_select(*taken)
    if name == 'bernoulli':
        values = values < args[0]
    return values.to(out.dtype).requires_grad_(out.requires_grad and out.is_leaf)
