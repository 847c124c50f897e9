"""A model with nothing of pyg_sar in it. The process is a fork: it is changed in place.

So a step may hold the model, its convs or its parameters by other ways than its argument.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.ddp import DistributedDataParallel
from pyg_sar.ground.class_swap import plain_class

_HOOKS = ('_forward_pre_hooks', '_forward_hooks', '_backward_pre_hooks', '_backward_hooks')
_DROPOUTS = (
    *(torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d),
    *(torch.nn.AlphaDropout, torch.nn.FeatureAlphaDropout),
)
_MADE = ('_sar', '_own_updates', '_gradients')


def plain_model(model: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The model with its plain classes again, without gradients, caches and dropout."""
    torch.set_default_dtype(dtype)
    is_parallel = isinstance(model, DistributedDataParallel)
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model, is_parallel = model.module, True
    for module in model.modules():
        _make_plain(module)
        clear_caches(module)
        for name, value in list(vars(module).items()):
            is_dropout = isinstance(module, _DROPOUTS) and name == 'p'
            if type(value) is float and ('dropout' in name or is_dropout):
                setattr(module, name, 0.0)
    for p in model.parameters():
        p.grad = None
        _without_ours(p._backward_hooks)
    for name, value in {'module': model, 'no_sync': nullcontext}.items() if is_parallel else ():
        if not hasattr(model, name):  # for steps that write ``model.module``
            vars(model)[name] = value
    return model.double() if dtype == torch.float64 else model


def _make_plain(module: torch.nn.Module) -> None:
    cls = type(module)
    if isinstance(module, (SARConv, DistributedDataParallel)):
        object.__setattr__(module, '__class__', plain_class(module))
    elif cls.__module__.startswith('pyg_sar.norm.'):
        module.__class__ = next(c for c in cls.__mro__ if not c.__module__.startswith('pyg_sar.'))
    elif cls is torch.nn.SyncBatchNorm:  # needs a GPU
        module.__class__ = torch.nn.BatchNorm1d
    if type(module) is not cls:
        for name in _MADE:
            vars(module).pop(name, None)
    for name in _HOOKS:
        _without_ours(vars(module)[name])


def clear_caches(module: torch.nn.Module) -> None:
    """Forgets what a conv of PyG has kept with ``cached=True``.

    Raises:
        ValueError: If it is not known where.
    """
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
