"""One run of a step: what it returns and the gradients, as arrays that can be sent.

Dropout is off. Numbers that are drawn like rows are drawn for all rows, and each rank takes its
own: so they are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch_geometric.data.data import BaseData

from pyg_sar.own_rows import OwnRows
from pyg_sar.rows.leaving import gather
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.space import Space

_DROPOUTS = {
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout),
    *(torch.dropout, torch.dropout_, torch.alpha_dropout, torch.feature_dropout),
}
_DRAWS = {
    *(torch.rand_like, torch.randn_like, torch.randint_like, torch.bernoulli, Tensor.bernoulli),
    *(Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.bernoulli_, Tensor.random_),
}
_TOLD = (type(None), bool, int, float, complex, str, bytes)
_OF_SHARDS = {'n_id', 'e_id', 'num_nodes', 'num_nodes_total'}


@dataclass(frozen=True)
class Outcome:
    """What a run gave, by path or name."""

    results: dict[str, Any]
    gradients: dict[str, Any]
    states: dict[str, Any]  # parameters and buffers afterwards
    has_backward: bool  # whether what is returned has a backward that the step has not run


def run_once(
    step: Callable[[Any, Any], Any], model: Any, data: Any, *, has_backward: bool | None = None
) -> Outcome:
    """Runs the step, and the backward of what it returns if the step has made no gradients.

    With `has_backward` that is known of another run.
    """
    with _SameDraws():
        if any(is_lazy(p) for p in model.parameters()):
            step(model, data)  # parameters get their shapes, and have no gradients yet
            model.zero_grad()
        returned = dict(_leaves(step(model, data), '', ()))
    results = {path: _told(value, path) for path, value in returned.items()}
    if has_backward is not False and all(p.grad is None for p in model.parameters()):
        has_backward = _backward(list(returned.values()), is_sure=has_backward is True)
    else:
        has_backward = False
    spaces = _spaces(data)
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Outcome(
        results=results,
        gradients={name: _of_table(p, p.grad, spaces) for name, p in named.items()},
        states={
            name: _of_table(value, value, spaces)
            for name, value in (*model.named_parameters(), *model.named_buffers())
        },
        has_backward=has_backward,
    )


def _backward(values: list[Any], *, is_sure: bool) -> bool:
    """The backward of the scalars among what is returned; whether there was one."""
    losses = [v for v in values if isinstance(v, Tensor) and v.requires_grad and v.dim() == 0]
    if not losses:
        return False
    try:
        torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        if is_sure:
            raise
        return False  # the step has run it, and forgotten the gradients
    return True


def _spaces(data: Any) -> dict[Any, Space]:
    ids = {store._key: store.n_id for store in data.node_stores}
    return {key: n_id._space for key, n_id in ids.items() if isinstance(n_id, Rows)}


def _of_table(p: Tensor, value: Tensor | None, spaces: dict[Any, Space]) -> Any:
    """A parameter, its gradient or a buffer; of learned rows those of all nodes."""
    if value is not None and isinstance(p, OwnRows):
        with torch._C.DisableTorchFunctionSubclass():
            value = value.detach()
            value = (value if value.layout == torch.strided else value.to_dense()).clone()
            value = value.as_subclass(Tensor)
        if p.node_type in spaces:
            value = tag(value, 0, spaces[p.node_type])
    return _told(value, '')


def _leaves(value: Any, path: str, outer: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    """What is in containers, data, modules and objects, each with its path."""
    items: Iterator[tuple[str, Any]]
    if isinstance(value, (*_TOLD, Tensor, np.ndarray, np.generic, Enum)) or id(value) in outer:
        yield path, None if id(value) in outer else value
        return
    if isinstance(value, Mapping):
        items = ((f'[{key!r}]', each) for key, each in value.items())
    elif isinstance(value, tuple) and hasattr(value, '_fields'):
        items = ((f'.{name}', getattr(value, name)) for name in value._fields)
    elif isinstance(value, (list, tuple)):
        items = ((f'[{i}]', each) for i, each in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        items = iter([('', repr(sorted(map(repr, value))))])
    elif isinstance(value, BaseData):
        items = (
            (f'.{name}' if store._key is None else f'[{store._key!r}].{name}', each)
            for store in value.stores
            for name, each in store.items()
            if name not in _OF_SHARDS
        )
    elif isinstance(value, torch.nn.Module):
        items = ((f'.{name}', each) for name, each in value.named_parameters())
    elif callable(value) or isinstance(value, (torch.dtype, torch.device)):
        items = iter([('', getattr(value, '__qualname__', None) or str(value))])
    else:
        names = [*getattr(value, '__dict__', {}), *getattr(type(value), '__slots__', ())]
        if not names:
            raise TypeError(
                f"'{path}' of what the step returns cannot be compared (got a "
                f'{type(value).__name__}): return tensors, numbers or strings'
            )
        items = ((f'.{name}', getattr(value, name)) for name in names if hasattr(value, name))
    for name, each in items:
        yield from _leaves(each, path + name, (*outer, id(value)))


def _told(value: Any, path: str) -> Any:
    """A leaf as it is sent: an array with its dtype, or a value (collective for rows)."""
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), np.asarray(value)
    if not isinstance(value, Tensor):
        return value.name if isinstance(value, Enum) else value
    dtype = str(value.dtype)
    value = gather(value.detach())
    value = value if value.layout == torch.strided else value.to_dense()
    value = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    return dtype, value.numpy(force=True).copy()


class _SameDraws(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else kwargs['input']
        if kwargs.get('dropout_p'):
            kwargs['dropout_p'] = 0.0
        rows = args[0] if args else kwargs.get('input')
        if func not in _DRAWS or not isinstance(rows, Rows) or not rows._space.has_ids():
            return func(*args, **kwargs)
        with torch.no_grad():
            drawn = func(gather(rows), *args[1:], **{k: kwargs[k] for k in kwargs if k != 'input'})
            own = drawn.index_select(rows._dim, rows._space.ids(drawn.device))
            own = tag(own, rows._dim, rows._space)
            return rows.copy_(own) if func.__name__.endswith('_') else own
