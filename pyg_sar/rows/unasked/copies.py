"""Functions that copy the numbers of a tensor, and forms of them that ask for its class."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from pyg_sar.rows.rows import Rows
from pyg_sar.rows.unasked.constructors import tell_torchscript


def ask() -> None:
    """Puts them in place."""
    for name in ('as_tensor', 'asarray'):
        function = getattr(torch, name)
        made = _converting(function)
        tell_torchscript(made, function)
        setattr(torch, name, made)
    Tensor.new_tensor = _copying_like(Tensor.new_tensor)  # type: ignore[method-assign]


def _copying_like(function: Callable[..., Any]) -> Callable[..., Any]:
    """``plain.new_tensor``."""

    @wraps(function)
    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get('data')
        if isinstance(self, Rows) or not isinstance(data, Rows):
            return function(self, *args, **kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k != 'data'}
        like = {'dtype': self.dtype, 'device': self.device}
        return _copy(data, **{**like, **{k: v for k, v in kwargs.items() if v is not None}})

    return new_tensor


def _converting(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.as_tensor`` and ``torch.asarray``, which copy for another type or device."""

    @wraps(function)
    def convert(*args: Any, **kwargs: Any) -> Any:
        names = ('data', 'obj')
        rows = args[0] if args else next((kwargs[n] for n in names if n in kwargs), None)
        if not isinstance(rows, Rows):
            return function(*args, **kwargs)
        named = dict(zip(('dtype', 'device'), args[1:], strict=False)) | kwargs
        copy, requires_grad = named.get('copy'), named.get('requires_grad')
        to = {n: named[n] for n in ('dtype', 'device') if named.get(n) is not None}
        out: Any = rows.clone() if copy else rows
        out = out.to(**to) if to else out
        if copy is False and out is not rows:
            raise ValueError('cannot make another type or device of rows without a copy')
        if function.__name__ == 'asarray' and not requires_grad and out is rows:
            return out.detach() if out.requires_grad else out
        return out.requires_grad_() if requires_grad else out

    return convert


def _copy(
    rows: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Any:
    out = rows.detach().clone()
    out = out.to(device=device or out.device, dtype=dtype or out.dtype)
    if pin_memory:
        out = out.pin_memory()
    return out.requires_grad_() if requires_grad else out
