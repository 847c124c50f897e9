"""What takes the memory of a tensor without a look at its class, replaced for rows.

A copy or an alias of rows is rows. What hands their memory to a transform, to TorchScript or to
another library is refused. The old names of types (``torch.FloatTensor``) are classes of C, so
classes of Python take their place, by which ``isinstance`` and ``x.type(torch.FloatTensor)`` go as
before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.rows import Rows, refuse
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.private_names import find

_DIRECT = {
    torch.nested: ('nested_tensor',),
    torch.utils.dlpack: ('to_dlpack',),
    torch: ('to_dlpack',),
    torch.func: ('vjp', 'jvp', 'linearize'),
    torch.jit.ScriptFunction: ('__call__',),
    torch.autograd.graph: ('register_multi_grad_hook',),
    Tensor: ('set_',),
}
_TRANSFORMS = {
    torch: ('vmap',),
    torch.func: ('vmap', 'grad', 'grad_and_value', 'jacrev', 'jacfwd', 'hessian', 'functionalize'),
}


def ask() -> None:
    """Replaces the functions."""
    tensor = torch.tensor
    torch.tensor = _copying(tensor)
    tell_torchscript(torch.tensor, tensor)
    Tensor.new_tensor = _copying_like(Tensor.new_tensor)  # type: ignore[method-assign]
    Tensor.__new__ = _aliasing(Tensor.__new__)  # type: ignore[method-assign]
    Tensor.new = _aliasing(Tensor.new)  # type: ignore[method-assign]
    for name, setting in {'data': _all_rows, 'real': _no_rows, 'imag': _no_rows}.items():
        setattr(Tensor, name, _attribute(name, getattr(Tensor, name), setting))
    type(Variable).__call__ = _variable  # type: ignore[method-assign,assignment]
    for owner, names in _DIRECT.items():
        for name in names:
            setattr(owner, name, _refusing(getattr(owner, name), name))
    for owner, names in _TRANSFORMS.items():
        for name in names:
            setattr(owner, name, _transforming(getattr(owner, name), name))
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


def _refusing(function: Callable[..., Any], name: str) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _are_rows(*leaves((args, kwargs))):
            refuse('TorchScript' if name == '__call__' else name)
        return function(*args, **kwargs)

    return call


def _transforming(transform: Callable[..., Any], name: str) -> Any:
    """A transform whose functions refuse rows."""

    @wraps(transform)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _refusing(transform(*args, **kwargs), f'torch.func.{name}')

    return call


class _OldType(type):
    """The class of what stands for ``torch.FloatTensor`` and its like."""

    kind: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not _are_rows(*args, *kwargs.values()):
            return cls.kind(*args, **kwargs)
        if 'sparse' in cls.__name__:
            args, kwargs = in_nested((args, kwargs), whole)
            return cls.kind(*args, **kwargs)
        (rows,) = args
        cls.kind(torch.empty(0, dtype=rows.dtype, device=rows.device))  # raises for another type
        return rows.view_as(rows)

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


def _aliasing(function: Callable[..., Any]) -> Any:
    """``torch.Tensor`` and ``plain.new``, which alias a tensor."""

    @wraps(function)  # without a signature, as torch.compile looks for one
    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        if not _are_rows(*args) or (isinstance(first, type) and first is not Tensor):
            return function(first, *args, **kwargs)
        (rows,) = args
        if isinstance(first, Tensor) and first.dtype != rows.dtype:
            raise TypeError(f'expected a tensor of {first.dtype} (got rows of {rows.dtype})')
        return rows.view_as(rows)

    return call


def _variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.autograd.Variable``."""
    data, *rest = *args, *kwargs.values()
    if not _are_rows(data):
        return type.__call__(cls, *args, **kwargs)
    requires_grad = kwargs.get('requires_grad', rest[0] if args[1:] else False)
    return data.detach().requires_grad_(bool(requires_grad))


def _attribute(name: str, of_c: Any, setting: Callable[..., Any]) -> property:
    def get(tensor: Any) -> Any:
        return of_c.__get__(tensor)

    get.__name__ = name  # torch tells __torch_function__ of it
    return property(get, setting(of_c.__set__), doc=of_c.__doc__)


def _all_rows(function: Callable[..., Any]) -> Callable[..., None]:
    """``plain.data = rows`` sets all rows, as on one process."""

    def set_data(tensor: Any, value: Any) -> None:
        takes_all = _are_rows(value) and not isinstance(tensor, Rows)
        function(tensor, whole(value) if takes_all else value)

    return set_data


def _no_rows(function: Callable[..., Any]) -> Callable[..., None]:
    """``rows.real = values``, which torch writes into the own rows."""

    def set_part(tensor: Any, value: Any) -> None:
        if _are_rows(tensor, value):
            refuse('real or imag', 'as a target would write the rows of this rank alone')
        function(tensor, value)

    return set_part


def _copying(function: Callable[..., Any]) -> Any:
    """``torch.tensor``."""

    @wraps(function)
    def tensor(*args: Any, **kwargs: Any) -> Any:
        data: Any = args[0] if args else kwargs.get('data')
        if not isinstance(data, Rows) or not _are_rows(data):
            return function(*args, **kwargs)
        return _copy(data, data, **{k: v for k, v in kwargs.items() if k != 'data'})

    return tensor


def _copying_like(function: Callable[..., Any]) -> Any:
    """``plain.new_tensor``."""

    @wraps(function)
    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get('data')
        if isinstance(self, Rows) or not isinstance(data, Rows):
            return function(self, *args, **kwargs)
        return _copy(data, self, **{k: v for k, v in kwargs.items() if k != 'data'})

    return new_tensor


def _copy(
    rows: Any,
    like: Tensor,
    *,
    dtype: Any = None,
    device: Any = None,
    requires_grad: Any = False,
    pin_memory: Any = False,
) -> Any:
    out = rows.detach().clone().to(device=device or like.device, dtype=dtype or like.dtype)
    out = out.pin_memory() if pin_memory else out
    return out.requires_grad_() if requires_grad else out
