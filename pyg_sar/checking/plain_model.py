"""Removes pyg_sar from a model in place, in a forked process.

In place, as a step may hold the model, its convs or its parameters outside of its argument.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from pyg_sar.checking.small_part import Chosen, part_of_tables
from pyg_sar.comm import is_distributed
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.ground.class_swap import plain_class

_HOOKS = ('_forward_pre_hooks', '_forward_hooks', '_backward_pre_hooks', '_backward_hooks')
_OURS = ('_sar', '_own_updates', '_gradients')


def plain_model(
    model: torch.nn.Module, data: Any, dtype: torch.dtype, chosen: Chosen, small: Any
) -> torch.nn.Module:
    """The model with its plain classes, without gradients, caches and dropout, for `small`."""
    torch.set_default_dtype(dtype)
    is_parallel = isinstance(model, DistributedDataParallel)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model, is_parallel = model.module, True
    for module in model.modules():
        _make_plain(module)
        clear_caches(module)
        is_dropout = any(c.__module__ == 'torch.nn.modules.dropout' for c in type(module).__mro__)
        for name, value in list(vars(module).items()):
            if type(value) is float and ('dropout' in name or (is_dropout and name == 'p')):
                setattr(module, name, 0.0)
    for p in model.parameters():
        p.grad = None
        _without_ours(p._backward_hooks)
    if is_parallel and not is_distributed():
        for name, value in (('module', model), ('no_sync', nullcontext)):
            if not hasattr(model, name):  # for steps that write ``model.module``
                vars(model)[name] = value
    if dtype == torch.float64:
        model.double()
    part_of_tables(model, data, chosen, small)
    return model


def _make_plain(module: torch.nn.Module) -> None:
    cls = type(module)
    if isinstance(module, (SARConv, DistributedDataParallel)):
        object.__setattr__(module, '__class__', plain_class(module))
    elif cls.__module__.startswith('pyg_sar.norm.'):
        module.__class__ = next(c for c in cls.__mro__ if not c.__module__.startswith('pyg_sar.'))
    elif cls is torch.nn.SyncBatchNorm:  # needs a GPU
        module.__class__ = torch.nn.BatchNorm1d
    if type(module) is not cls:
        for name in _OURS:
            vars(module).pop(name, None)
    for name in _HOOKS:
        _without_ours(vars(module)[name])


def clear_caches(module: torch.nn.Module) -> None:
    """Empties the caches of a conv of PyG with ``cached=True``; a ValueError if it has none."""
    cls = type(module)
    if cls.__module__.startswith('torch_geometric.') and getattr(module, 'cached', False):
        caches = [name for name in vars(module) if name.startswith('_cached_')]
        if not caches:
            raise ValueError(
                f"expected attributes '_cached_...' of {cls.__name__} with cached=True (got none): "
                'pyg_sar.check does not know this version of PyG'
            )
        for name in caches:
            setattr(module, name, None)


def _without_ours(hooks: dict[int, Any] | None) -> None:
    for key, hook in [*(hooks or {}).items()]:
        home = getattr(hook, '__module__', None) or type(hook).__module__
        if hooks and home.startswith('pyg_sar.'):
            del hooks[key]
