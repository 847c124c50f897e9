"""Runs a step once, and returns its results and gradients as arrays.

Dropout is off. Functions such as ``randn_like(rows)`` draw for all rows, and each rank takes its
own. So all ranks together draw the numbers of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch_geometric.data.data import BaseData

from pyg_sar.rows.attach import gather, lines_of_local
from pyg_sar.rows.rows import Rows, tag

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.dropout_, torch.alpha_dropout, torch.feature_dropout),
}
_DRAWS = {
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.bernoulli, Tensor.bernoulli),
    *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.bernoulli_, Tensor.random_),
}
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


@dataclass(frozen=True)
class Outcome:
    """The values of a run by path or name: arrays with their dtypes, or numbers and texts."""

    results: dict[str, Any]
    gradients: dict[str, Any]
    states: dict[str, Any]  # parameters and buffers afterwards
    lines_of_local: list[tuple[str, int]]  # where the step called pyg_sar.local


def run_once(step: Callable[[Any, Any], Any], model: Any, data: Any) -> Outcome:
    """Runs the step, and the backward of its losses if it has computed no gradients."""
    lines: list[tuple[str, int] | None] = []
    with _SameDraws(), lines_of_local.set(lines):
        if any(is_lazy(p) for p in model.parameters()):
            step(model, data)  # gives parameters their shapes
            model.zero_grad()
        returned = dict(_leaves(step(model, data), '', ()))
    results = {path: _sendable(value) for path, value in returned.items()}
    losses = [v for v in returned.values() if isinstance(v, Tensor) and v.requires_grad]
    losses = [loss for loss in losses if loss.dim() == 0]
    if losses and all(p.grad is None for p in model.parameters()):
        try:
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            if 'second time' not in str(error):  # of a step that has set gradients to None
                raise
    named = [*model.named_parameters(), *model.named_buffers()]
    gradients = {name: _sendable(value.grad) for name, value in named if value.is_leaf}
    states = {name: _sendable(value) for name, value in named}
    return Outcome(results, gradients, states, [line for line in lines if line])


def _leaves(value: Any, path: str, outer: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """The values in containers, data and objects, with their paths."""
    if isinstance(value, BaseData):
        value = {k: v for k, v in value.to_dict().items() if k != 'label_range'}  # of a shard
    if isinstance(value, (*_PLAIN, Tensor, np.ndarray, np.generic)):
        yield path, value
        return
    if id(value) in outer or isinstance(value, torch.nn.Module):
        return  # parameters are compared anyway
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, '__slots__', ())]
    names = getattr(value, '_fields', None) or [*getattr(value, '__dict__', ()), *slots]
    if isinstance(value, Mapping):
        items = [(f'[{key!r}]', item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and not hasattr(value, '_fields'):
        items = [(f'[{i}]', item) for i, item in enumerate(value)]
    elif names:
        items = [(f'.{name}', getattr(value, name)) for name in names if hasattr(value, name)]
    else:
        items = [('', repr(value))]
    for name, item in items:
        yield from _leaves(item, path + name, (*outer, id(value)))


def _sendable(value: Any) -> Any:
    """A leaf as an array with its dtype, if it is a tensor or array (collective for rows)."""
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), np.asarray(value)
    if not isinstance(value, Tensor):
        return value
    dtype, value = str(value.dtype), gather(value.detach().to_dense())
    value = value.float() if value.dtype == torch.bfloat16 else value
    return dtype, value.numpy(force=True).copy()


class _SameDraws(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        rows = args[0] if args else kwargs.pop('input', None)
        args = rows, *args[1:]
        if func in _DROPOUTS:
            return rows
        if kwargs.get('dropout_p'):
            kwargs['dropout_p'] = 0.0
        if func not in _DRAWS or not isinstance(rows, Rows) or not rows._space.has_ids():
            return func(*args, **kwargs)
        with torch.no_grad():
            drawn = func(gather(rows), *args[1:], **kwargs)
            own = drawn.index_select(rows._dim, rows._space.ids(drawn.device))
            own = tag(own, rows._dim, rows._space)
            return rows.copy_(own) if func.__name__.endswith('_') else own
