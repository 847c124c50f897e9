"""What autograd saves of rows, where hooks keep it elsewhere: a checkpoint's, or a user's.

Autograd saves inside of rules, where rows have the shape of the own ones; in a backward they have
that of the whole. A checkpoint compares both. So hooks get plain tensors of the own rows.

They get the arguments of a checkpoint inside of another one as well, and C++ gives back plain
tensors. A function that is computed again from these would take the rows of this rank for all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter

from pyg_sar.rows.rows import Rows, plain, tag
from pyg_sar.utils.installed import missing


def keep_rows_apart() -> None:
    """Has hooks get plain tensors, and checkpoints compute again from rows."""
    region: Any = torch.utils.checkpoint._CheckpointFrame
    hooks: Any = saved_tensors_hooks
    hooks.__init__, region.__init__ = _of_own_rows(hooks.__init__), _from_rows(region.__init__)


def _of_own_rows(make: Callable[..., None]) -> Callable[..., None]:
    @wraps(make)
    def call(self: Any, pack_hook: Callable[[Tensor], Any], unpack_hook: Any) -> None:
        make(self, lambda tensor: pack_hook(plain(tensor)), unpack_hook)

    return call


def _from_rows(make: Callable[..., None]) -> Callable[..., None]:
    """Arguments of a checkpoint's function stand beside it, and come last when it runs again."""

    @wraps(make)
    def call(region: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        given = sys._getframe(1).f_locals.get('args')
        if given is None:
            raise missing('torch.utils.checkpoint._CheckpointFrame')
        make(region, _again(function, [_kind(arg) for arg in given]), *args, **kwargs)

    return call


def _kind(arg: Any) -> Any:
    """How the argument becomes what it was; None if it is no tensor of ours."""
    if not isinstance(arg, Tensor) or type(arg) in (Tensor, Parameter):
        return None
    if not arg.requires_grad:
        return lambda saved: arg
    if not isinstance(arg, Rows):
        return None
    dim, sharding = arg._dim, arg._sharding  # the tensor itself would hold what is computed again
    return lambda saved: tag(saved, dim, sharding) if type(saved) is Tensor else saved


def _again(function: Callable[..., Any], kinds: Sequence[Any]) -> Callable[..., Any]:
    if not any(kinds):
        return function

    def again(*args: Any) -> Any:
        first = len(args) - len(kinds)
        pairs = zip(kinds, args[first:], strict=True)
        return function(*args[:first], *(arg if kind is None else kind(arg) for kind, arg in pairs))

    return again
