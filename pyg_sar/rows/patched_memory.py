"""What takes the memory of a tensor without a look at its class: with rows it is refused.

The old names of types (``torch.FloatTensor``) are classes of C, so classes of Python take their
place, by which ``isinstance`` and ``x.type(torch.FloatTensor)`` go as before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from pyg_sar.rows.rows import Rows, refuse
from pyg_sar.utils.installed import find
from pyg_sar.utils.nested import leaves

_MAKERS = (
    *((torch, name, name) for name in ('tensor', 'asarray', 'to_dlpack')),
    *((Tensor, name, name.strip('_')) for name in ('new', 'new_tensor', 'set_')),
    (Tensor, '__new__', 'Tensor'),
    (type(Variable), '__call__', 'Variable'),
    (torch.utils.dlpack, 'to_dlpack', 'to_dlpack'),
)
"""What makes a tensor of another one, where it is, and its name in messages."""

_TAKERS = (
    *((torch.func, name, name) for name in ('vjp', 'jvp', 'linearize')),
    (torch.nested, 'nested_tensor', 'nested_tensor'),
    (torch.jit.ScriptFunction, '__call__', 'TorchScript'),
    (torch.jit, 'trace', 'torch.jit.trace'),
    (torch.autograd.graph, 'register_multi_grad_hook', 'register_multi_grad_hook'),
)
"""What takes tensors, also in lists."""

_TRANSFORMS = (
    (torch, 'vmap'),
    *((torch.func, name) for name in ('vmap', 'grad', 'grad_and_value', 'jacrev', 'jacfwd')),
    *((torch.func, name) for name in ('hessian', 'functionalize')),
)


def refuse_where_memory_is_taken() -> None:
    """Replaces the functions."""
    with torch.device('cpu'):  # torch lists now which functions have a default device
        torch.empty(0)
    for owner, name, told in _MAKERS:
        function = getattr(owner, name)
        refusing = _refusing(function, told, int(isinstance(owner, type)))
        setattr(owner, name, refusing)
        if owner is torch:
            tell_torchscript(refusing, function)
    for owner, name, told in _TAKERS:
        setattr(owner, name, _refusing(getattr(owner, name), told, None))
    for owner, name in _TRANSFORMS:
        setattr(owner, name, _transforming(getattr(owner, name), name))
    for name in ('data', 'real', 'imag'):
        setattr(Tensor, name, _attribute(name))
    as_tensor = torch.as_tensor
    torch.as_tensor = _converting(as_tensor)
    tell_torchscript(torch.as_tensor, as_tensor)
    for module in (torch, torch.sparse, torch.cuda, torch.cuda.sparse):
        for name, kind in [*vars(module).items()]:
            if type(kind).__name__ == 'tensortype':
                setattr(module, name, _OldType(f'{module.__name__}.{name}', (), {'kind': kind}))
    torch.set_default_tensor_type = _of_old_types(torch.set_default_tensor_type)


def tell_torchscript(replacement: Any, function: Any) -> None:
    """TorchScript takes what stands for a function of torch for that function."""
    try:
        operator = find('torch.jit._builtins._find_builtin')(function)
        if operator is not None:
            find('torch.jit._builtins._register_builtin')(replacement, operator)
    except ImportError as error:
        warnings.warn(f'{error}; TorchScript of {function.__name__} will fail', stacklevel=2)


def _are_rows(*values: Any) -> bool:
    """Whether a program, not the package itself, gives rows."""
    return any(isinstance(v, Rows) for v in values) and torch._C._is_torch_function_enabled()


def _refusing(function: Callable[..., Any], name: str, first: int | None) -> Any:
    """Refuses rows among the arguments from the `first` one on; if None, also in lists."""

    @wraps(function)  # without a signature, as torch.compile looks for one
    def call(*args: Any, **kwargs: Any) -> Any:
        values = leaves((args, kwargs)) if first is None else (*args[first:], *kwargs.values())
        # As _are_rows, which would be a call more: torch.tensor is called in every step.
        if any(isinstance(v, Rows) for v in values) and torch._C._is_torch_function_enabled():
            refuse(name)
        return function(*args, **kwargs)

    return call


def _transforming(transform: Callable[..., Any], name: str) -> Any:
    """A transform whose functions refuse rows."""

    @wraps(transform)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _refusing(transform(*args, **kwargs), f'torch.func.{name}', None)

    return call


class _OldType(type):
    """The class of what stands for ``torch.FloatTensor`` and its like."""

    kind: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _are_rows(*args, *kwargs.values()):
            refuse(
                cls.__name__, instead='write x.to(dtype), or torch.sparse_coo_tensor(ids, x, size)'
            )
        return cls.kind(*args, **kwargs)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.kind)

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, 'kind'), name)

    def __repr__(cls) -> str:
        return repr(cls.kind)


def _of_old_types(function: Callable[..., Any]) -> Any:
    """``torch.set_default_tensor_type``, which takes the class of C alone."""

    @wraps(function)
    def call(kind: Any) -> None:
        for old in vars(torch).values() if isinstance(kind, str) else ():
            kind = old if isinstance(old, _OldType) and old.__name__ == kind else kind
        function(kind.kind if isinstance(kind, _OldType) else kind)

    return call


def _attribute(name: str) -> property:
    """An attribute of tensors that is set to memory: of rows it is that of the rank."""
    of_c = getattr(Tensor, name)

    def get(tensor: Any) -> Any:
        return of_c.__get__(tensor)

    def set_memory(tensor: Any, value: Any) -> None:
        if _are_rows(tensor, value) and (name != 'data' or not isinstance(tensor, Rows)):
            refuse(f'{name} =')
        of_c.__set__(tensor, value)

    get.__name__ = name  # torch tells __torch_function__ of it
    return property(get, set_memory, doc=of_c.__doc__)


def _converting(function: Callable[..., Any]) -> Any:
    """``torch.as_tensor``, which gives a tensor back, in another type or on another device."""

    @wraps(function)
    def as_tensor(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(('data', 'dtype', 'device'), args, strict=False)) | kwargs
        data = named.pop('data', None)
        if not isinstance(data, Rows):
            return function(*args, **kwargs)
        to = {name: value for name, value in named.items() if value is not None}
        return data.to(**to) if to else data

    return as_tensor
