"""``backward`` and ``torch.autograd.grad`` that start from rows, or end at them; hooks of rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from pyg_sar.rows.align import argument, own_rows
from pyg_sar.rows.registry import rule
from pyg_sar.rows.rows import Rows, plain, plainly, refuse, tag


@rule('backward')
def _backward(func: Any, args: Any, kwargs: Any) -> Any:
    """``out.backward(gradient)``: every rank starts with the gradient of its own rows.

    No rows are given on: with them rules would be off in the whole backward, and in its hooks.
    """
    outs = args[0]
    is_one = isinstance(outs, Tensor)
    many = (outs,) if is_one else outs
    grads = argument(args, kwargs, 1, 'gradient', 'grad_tensors')
    grads = grads if isinstance(grads, (tuple, list)) else (grads,) * len(many)
    shares = [_share(func, *pair) for pair in zip(many, grads, strict=True)]
    kwargs = {k: v for k, v in kwargs.items() if k not in ('gradient', 'grad_tensors')}
    inputs = kwargs.get('inputs')
    if inputs is not None:
        inputs = [inputs] if isinstance(inputs, Tensor) else inputs
        kwargs['inputs'] = [_edge(tensor, is_kept=True) for tensor in inputs]
    with torch.enable_grad():  # a checkpoint calls it in a backward
        starts = [*map(plain, many)]
    func(*(starts[0], shares[0]) if is_one else (starts, shares), *args[2:], **kwargs)


def _edge(tensor: Any, *, is_kept: bool = False) -> Any:
    """What stands for rows among the inputs of a backward, which sets their ``.grad`` if kept."""
    if not isinstance(tensor, Rows):
        return tensor
    with plainly():
        if is_kept and not tensor.is_leaf:
            tensor.retain_grad()
        return get_gradient_edge(tensor)


def _share(func: Any, out: Tensor, grad: Any) -> Any:
    """The gradient that this rank starts with, of the one that one process starts with."""
    if not isinstance(out, Rows):
        if isinstance(grad, Rows):
            refuse(func, 'starts from a plain tensor')
        return grad
    if grad is None:
        refuse(func, 'needs a gradient with one row each')
    if not isinstance(grad, Rows):
        grad = tag(own_rows(func, grad, out._dim, out._sharding), out._dim, out._sharding)
    elif grad._dim != out._dim or not out._sharding.is_same(grad._sharding):
        refuse(func, 'takes a gradient of the same rows')
    return plain(grad)


@rule('register_hook')
def _hook(func: Any, args: Any, kwargs: Any) -> Any:
    """A user's hook gets rows of the gradient."""
    rows, hook = args
    dim, sharding = rows._dim, rows._sharding
    with plainly():
        modules = (getattr(owner, '__module__', '') or '' for owner in (hook, type(hook)))
        if any(module.startswith('pyg_sar.') for module in modules):  # one of ours
            return func(rows, hook)

        def own(grad: Tensor) -> Any:
            out = hook(tag(grad.view_as(grad), dim, sharding))
            is_plain = isinstance(out, Tensor) and not isinstance(out, Rows)
            return own_rows(func, out, dim, sharding) if is_plain else plain(out)

        return func(rows, own)


@rule('grad')
def _autograd_grad(func: Any, args: Any, kwargs: Any) -> Any:
    """``torch.autograd.grad`` of a loss by rows, or of rows with their gradient."""
    inputs = argument(args, kwargs, 1, 'inputs')
    many = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    outputs = argument(args, kwargs, 0, 'outputs')
    outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
    starts = argument(args, kwargs, 2, 'grad_outputs')
    starts = starts if isinstance(starts, (tuple, list)) else (starts,) * len(outputs)
    starts = [_share(func, *pair) for pair in zip(outputs, starts, strict=True)]
    named = ('inputs', 'outputs', 'grad_outputs')
    kwargs = {k: v for k, v in kwargs.items() if k not in named}
    makes_zeros = kwargs.pop('materialize_grads', False)
    if makes_zeros:
        kwargs['allow_unused'] = True
    grads = list(func([*map(plain, outputs)], [*map(_edge, many)], starts, *args[3:], **kwargs))
    for i, (grad, tensor) in enumerate(zip(grads, many, strict=True)):
        if grad is None and makes_zeros:
            grads[i] = torch.zeros_like(tensor)
        elif isinstance(tensor, Rows) and grad is not None:
            grads[i] = tag(grad, tensor._dim, tensor._sharding)
    return tuple(grads)
