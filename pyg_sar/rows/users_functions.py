"""Users' ``torch.autograd.Function`` on rows: backward gets rows, as forward does.

Autograd hands a backward plain tensors, and no function of torch is called on the way. So
``Function.apply`` is replaced by one that looks at its arguments. With rows among them it runs a
subclass of the user's Function. Its backward gets rows for rows, and plain tensors for plain ones.

A program may keep ``apply`` under a name of its own before that. Such a call looks like any other
until it comes to ``forward``, so the Functions that are there by then refuse rows in ``forward``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache, wraps
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.optim import _functional
from torch.utils.hooks import BackwardHook

from pyg_sar.comm.errors import in_call
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.utils.dry_run import described
from pyg_sar.utils.installed import find, missing
from pyg_sar.utils.nested import leaves
from pyg_sar.utils.offload import start_of
from pyg_sar.utils.scoped import Scoped

_APPLY_HOOK = 'torch.utils.hooks.BackwardHook._apply_on_tensors'

LIBRARIES = 'torch.', 'torch_geometric.', 'torch_scatter.', 'torch_sparse.', 'pyg_sar.'
"""Where Functions come from that work row by row, or know rows."""

_Spec = tuple[int, Sharding] | None

_apply: Any = inspect.getattr_static(Function, 'apply')  # of Python, or since torch 2.14 of C

applied: Scoped[Callable[[Any], None] | None] = Scoped(None)
"""Sees every Function before it is applied."""

_is_seen: Scoped[bool] = Scoped(False)
"""Whether a Function is applied that has been looked at."""


def _apply_to_rows(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if applied.value is not None:
        applied.value(cls)
    inputs = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Rows)]
    if not inputs or not torch._C._is_torch_function_enabled():
        return _apply.__get__(None, cls)(*args, **kwargs)
    if kwargs:
        args = inspect.signature(cls.forward).bind(*args, **kwargs).args
    with _is_seen.set(True):
        out = _apply.__get__(None, _on_rows(cls))(*args)
    outs = out if isinstance(out, tuple) else (out,)
    with plainly():
        for tensor in outs:
            for rows in inputs if type(tensor) is Tensor else ():
                if _is_at(tensor, rows.shape, start_of(rows)):  # forward has returned its argument
                    tag(tensor, rows._dim, rows._sharding)
        nodes = (t.grad_fn for t in outs if isinstance(t, Tensor))
        node: Any = next(filter(None, nodes), None)
        if node is not None:
            type(node).saved_tensors = property(_saved)
            node._inputs, node._outs = [*map(_spec, args)], [*map(_spec, outs)]
            node._addresses = [(t.shape, start_of(t), _spec(t)) for t in outs if _spec(t)]
    return out


def _without_early_rows(cls: Any) -> None:
    """Has a Function refuse rows that do not come by way of the new ``apply``."""
    forward = cls.forward

    @wraps(forward)
    def checked(*args: Any, **kwargs: Any) -> Any:
        has_rows = any(isinstance(arg, Rows) for arg in (*args, *kwargs.values()))
        if has_rows and not _is_seen.value and torch._C._is_torch_function_enabled():
            name = cls.__name__
            how = f'call {name}.apply(...) where rows are given, or keep it after load_shard'
            refuse(f'{name}.apply', 'was kept by another name before load_shard', how)
        return forward(*args, **kwargs)

    cls.forward = staticmethod(checked)


def _subclasses(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _spec(value: Any) -> _Spec:
    return (value._dim, value._sharding) if isinstance(value, Rows) else None


def _is_at(tensor: Tensor, shape: Any, address: tuple[int, int]) -> bool:
    return tensor.shape == shape and start_of(tensor) == address


@cache
def _on_rows(cls: Any) -> Any:
    """The Function with a backward that is called with rows."""
    name = 'backward' if cls.vjp is Function.vjp else 'vjp'
    users, is_boxed = getattr(cls, name), getattr(cls, 'boxed_grads_call', False)

    def backward(ctx: Any, *grads: Any) -> Any:
        gradients = [_as_rows(*pair) for pair in zip(grads, ctx._outs, strict=True)]
        with torch._C._EnableTorchFunction():
            results = users(ctx, gradients) if is_boxed else users(ctx, *gradients)
            results = results if isinstance(results, tuple) else (results,)
        specs = chain(ctx._inputs, repeat(None))  # arguments that have a default may be missing
        return tuple(map(_own, repeat(f'{cls.__name__}.{name}'), results, specs))

    body = {key: getattr(cls, key) for key in ('__module__', '__qualname__', '__doc__')}
    body |= {name: staticmethod(backward), 'boxed_grads_call': False}
    return type(cls.__name__, (cls,), body)


def _as_rows(grad: Tensor | None, spec: _Spec) -> Any:
    if grad is None or spec is None:
        return grad
    with plainly():
        return tag(grad.view_as(grad), *spec)  # autograd may hold the tensor itself


def _own(name: str, grad: Any, spec: _Spec) -> Any:
    """The own rows of a gradient, if it is one of rows."""
    if grad is None or spec is None:
        if isinstance(grad, Rows):
            refuse(name, 'gives rows as the gradient of a plain tensor')
        return grad
    if not isinstance(grad, Rows):
        with plainly():
            grad = grad.index_select(spec[0], spec[1].ids(grad.device))
    return plain(grad)


def _saved(ctx: Any) -> tuple[Any, ...]:
    """``ctx.saved_tensors``, with rows where autograd made new tensors of the rows of forward."""
    saved: tuple[Any, ...] = super(type(ctx), ctx).saved_tensors
    with plainly():
        for tensor in saved:
            for shape, address, spec in vars(ctx).get('_addresses', ()):
                if type(tensor) is Tensor and _is_at(tensor, shape, address):
                    tag(tensor, *spec)
    return saved


class _NodeOnRows:
    """A node of autograd that gives the hooks of a module rows, and takes rows from them."""

    def __init__(self, node: Any, of_module: BackwardHook) -> None:
        self._node, self._of_module = node, of_module

    def register_hook(self, hook: Any) -> Any:
        """Calls it with rows for rows."""
        of = self._of_module
        names = ', '.join(map(described, (*of.user_hooks, *of.user_pre_hooks)))
        where = f'the backward hook {names} of {type(of.module).__name__}'
        inputs, outs = self._node._inputs, self._node._outs

        def on_rows(*grads: Any) -> Any:
            pairs = zip(grads, (inputs, outs), strict=True)
            with in_call(where):
                gradients = [tuple(map(_as_rows, of, specs)) for of, specs in pairs]
                with torch._C._EnableTorchFunction():
                    results = hook(*gradients)
            if results is None:
                return None
            return tuple(map(_own, repeat("a module's backward hook"), results, inputs))

        return self._node.register_hook(on_rows)


def _on_nodes(apply: Any) -> Any:
    """How a module makes nodes for its backward hooks."""

    def apply_on_tensors(hook: BackwardHook, fn: Any, args: Any) -> Any:
        specs = [_spec(arg) for arg in args if isinstance(arg, Tensor)]
        if not any(specs):
            return apply(hook, fn, args)
        # Edges, ids and features are known by the tensor: those without gradient stay it.
        stay = [isinstance(arg, Rows) and not arg.requires_grad for arg in args]

        def on_rows(node: Any) -> Any:
            node._inputs = node._outs = specs
            return fn(_NodeOnRows(node, hook))

        given = [plain(arg) if stays else arg for arg, stays in zip(args, stay, strict=True)]
        out, places = apply(hook, on_rows, tuple(given))
        out = [arg if stays else new for arg, new, stays in zip(args, out, stay, strict=True)]
        return tuple(out) if type(args) is tuple else type(args)(*out), places

    return apply_on_tensors


def _without_rows(set_up: Any) -> Any:
    """Refuses rows where hooks would get plain ones."""

    @wraps(set_up)
    def call(hook: BackwardHook, tensors: Any) -> Any:
        if any(isinstance(leaf, Rows) for leaf in leaves(tensors)):
            raise missing(_APPLY_HOOK)
        return set_up(hook, tensors)

    return call


def _by_number(function: Any) -> Any:
    """A step of an optimizer that treats every number of sparse rows by itself."""

    @wraps(function)
    def call(params: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(isinstance(param, Rows) for param in params):
            return function(params, *args, **kwargs)
        with plainly():
            return function(params, *args, **kwargs)

    return call


def ask_in_functions() -> None:
    """Replaces ``Function.apply``, and how a module makes nodes for its backward hooks."""
    Function.apply = classmethod(_apply_to_rows)
    for cls in {*_subclasses(Function)}:
        if 'forward' in vars(cls) and not cls.__module__.startswith(LIBRARIES):
            _without_early_rows(cls)
    _functional.sparse_adam = _by_number(_functional.sparse_adam)
    try:
        BackwardHook._apply_on_tensors = _on_nodes(find(_APPLY_HOOK))  # type: ignore[method-assign]
    except ImportError:
        for name in ('setup_input_hook', 'setup_output_hook'):
            setattr(BackwardHook, name, _without_rows(getattr(BackwardHook, name)))
