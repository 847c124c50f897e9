"""Computes activations again in backward instead of keeping them.

Between two convs a model mostly normalises, clips and drops. Each such step keeps a tensor of
``[num_own, F]`` for backward that follows from the one before it in a few passes over memory. For
such a result autograd saves a recipe, the step and its inputs, and backward computes it. All other
saved tensors, such as a conv's output, stay. A checkpoint of segments of a model would run its
exchanges again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.comm.ranks import world_size
from pyg_sar.monitor.recipes import Step, recorder
from pyg_sar.nn.recompute.dropout import Draw, Dropout, dropout_arguments
from pyg_sar.rows.replicated import own_draws
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.offload import start_of
from pyg_sar.utils.scoped import Scoped

_STEPS: set[Any] = {
    *(F.relu, torch.relu, Tensor.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu),
    *(F.silu, F.mish, F.softplus, F.logsigmoid, F.hardswish, F.hardtanh, F.prelu),
    *(F.batch_norm, F.layer_norm),
    *(torch.sigmoid, Tensor.sigmoid, F.sigmoid, torch.tanh, Tensor.tanh, F.tanh),
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    *(torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__),
    *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
    *(torch.div, Tensor.div, Tensor.__truediv__, Tensor.__rtruediv__),
}
"""Functions that cost no more than a few passes over the memory of their result."""

_INPUT = object()
"""Marks the tensors among a step's arguments."""

_MOST_KEPT = 1.25
"""A step may read so many times its result at most: else keeping the result saves memory."""


@contextmanager
def recomputed_activations() -> Iterator[None]:
    """While it lasts, autograd saves recipes of activations and norms, not their results.

    Values and gradients stay the same bits, dropout included. A tensor that is changed in place
    between forward and backward is an error, as it is without.
    """
    steps = _Recorder()
    with recorder.set(steps), steps, saved_tensors_hooks(steps.pack, _unpack):
        yield


def recompute_activations_of(module: torch.nn.Module) -> None:
    """Runs every forward of `module` in :func:`recomputed_activations`, from now on."""
    module.register_forward_pre_hook(_enter)
    module.register_forward_hook(_leave, always_call=True)


_entered = Scoped[tuple[Any, ...]](())


def _enter(module: torch.nn.Module, args: Any) -> None:
    context = recomputed_activations()
    context.__enter__()
    _entered.value = (*_entered.value, context)


def _leave(module: torch.nn.Module, args: Any, out: Any) -> None:
    *outer, context = _entered.value
    _entered.value = tuple(outer)
    context.__exit__(None, None, None)


@dataclass(eq=False)
class _Held:
    tensor: Tensor
    version: int

    def value(self) -> Tensor:
        if self.tensor._version != self.version:
            raise RuntimeError(
                'one of the variables needed for gradient computation has been modified by an '
                f'inplace operation: a {tuple(self.tensor.shape)} tensor is at version '
                f'{self.tensor._version}; expected version {self.version}'
            )
        return self.tensor


@dataclass(eq=False)
class _Recipe:
    """A tensor that is computed when it is needed."""

    step: Step
    inputs: tuple[_Held | _Recipe | None, ...]
    autocast: torch.autocast
    num_users: int = 0
    result: Tensor | None = field(default=None, repr=False)

    def value(self) -> Tensor:
        if self.result is not None:
            return self.result
        with torch.no_grad(), self.autocast:
            value = self.step(*(i and i.value() for i in self.inputs))
        # Kept until its last use: in most models that is the node before.
        self.result = value if self.num_users else None
        return value


@dataclass(eq=False)
class _Saved:
    """Replaces a saved tensor in a node of the autograd graph."""

    source: _Held | _Recipe
    is_used: bool = False


def _unpack(saved: _Saved) -> Tensor:
    source = saved.source
    value = source.value()
    if isinstance(source, _Recipe):
        if not saved.is_used:
            saved.is_used = True
            source.num_users -= 1
        if not source.num_users:
            source.result = None
    return value


class _Recorder(TorchFunctionMode):
    """Notes the steps of a forward, and packs what autograd saves in it."""

    def __init__(self) -> None:
        super().__init__()
        self._recipes: dict[tuple[int, int], tuple[weakref.ref[Tensor], int, _Recipe]] = {}
        self._noted: list[tuple[_Saved, Tensor]] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in (F.dropout, torch.dropout):
            return self._dropout(func, args, kwargs)
        if func not in _STEPS:
            return func(*args, **kwargs)
        has_rows = any(isinstance(arg, Rows) for arg in args)
        of_all_ranks = has_rows and func is F.batch_norm and world_size() > 1
        if of_all_ranks and _batch_norm_again(*args, **kwargs)[5]:  # training: its rule remembers
            return func(*args, **kwargs)
        noted: list[tuple[_Saved, Tensor]] = []
        self._noted = noted
        try:
            out = func(*args, **kwargs)
        finally:
            self._noted = None
        if func is F.batch_norm:
            args, kwargs = _batch_norm_again(*args, **kwargs), {}
        values = leaves((args, kwargs))
        inputs = tuple(plain(value) for value in values if isinstance(value, Tensor))
        if has_rows and not _fit(inputs):
            return out
        size = sum(t.numel() for t in inputs)
        if all(out is not t for t in values) and size <= _MOST_KEPT * plain(out).numel():
            pattern = in_nested((args, kwargs), lambda v: _INPUT if isinstance(v, Tensor) else v)

            def again(*inputs: Tensor) -> Tensor:
                rest = iter(inputs)
                args, kwargs = in_nested(pattern, lambda v: next(rest) if v is _INPUT else v)
                return func(*args, **kwargs)

            self.remember(out, again, inputs, noted)
        return out

    def _dropout(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        x, p, training, inplace = dropout_arguments(*args, **kwargs)
        if inplace or not training or not x.requires_grad or not 0 < p <= 1:
            return func(*args, **kwargs)
        own = plain(x)
        with own_draws(x.device) if isinstance(x, Rows) else nullcontext():
            draw = Draw(p, x.device)
            out = Dropout.apply(own, draw)
        self.remember(out, draw, (own,))
        return tag(out, x._dim, x._space) if isinstance(x, Rows) else out

    def remember(
        self,
        out: Tensor,
        step: Step,
        inputs: tuple[Tensor | None, ...],
        noted: Sequence[tuple[_Saved, Tensor]] = (),
    ) -> None:
        """Notes a recipe, also for those of the tensors `noted` in the step that are its result."""
        if not isinstance(out, Tensor) or not out.requires_grad or out.layout != torch.strided:
            return
        device = out.device.type
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        autocast = torch.autocast(device, dtype, enabled, cache_enabled=False)
        with plainly():
            sources = tuple(i if i is None else self._source(i) for i in inputs)
            recipe = _Recipe(step, sources, autocast)
            for saved, tensor in noted:
                if isinstance(saved.source, _Held) and _is_same(tensor, out):
                    saved.source = recipe
                    recipe.num_users += 1
            self._recipes[start_of(out)] = weakref.ref(out), out._version, recipe

    def pack(self, tensor: Tensor) -> _Saved:
        """Replaces a tensor that autograd saves."""
        with plainly():
            saved = _Saved(self._source(tensor))
        if isinstance(saved.source, _Recipe):
            saved.source.num_users += 1
        elif self._noted is not None:  # the result of a step, perhaps: it has not returned yet
            self._noted.append((saved, tensor))
        return saved

    def _source(self, tensor: Tensor) -> _Held | _Recipe:
        entry = self._recipes.get(start_of(tensor)) if tensor.numel() else None
        if entry is not None:
            reference, version, recipe = entry
            out = reference()  # while it lives no other tensor has its memory
            if out is not None and _is_same(tensor, out) and version == tensor._version:
                return recipe
        if isinstance(tensor, Rows):
            tensor = plain(tensor)
        # The result of a node comes with its history, which is the node that keeps it: a circle
        # that the garbage collector does not see. Autograd gives the history back by itself.
        version = tensor._version
        if type(tensor) in (Tensor, torch.nn.Parameter):
            with torch._C.DisableTorchFunction(), _disable_current_modes():  # they count operations
                tensor = tensor.detach()
        return _Held(tensor, version)


def _fit(inputs: Sequence[Tensor]) -> bool:
    """Whether a step on rows works on own rows alone: a tensor of all rows does not fit."""
    try:
        torch.broadcast_shapes(*(tensor.shape for tensor in inputs))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return False
    return True


def _batch_norm_again(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, ...]:
    """The arguments that give the same rows again and change no running statistics."""
    if training:
        running_mean = running_var = None
    return input, running_mean, running_var, weight, bias, training, 0.0, eps


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    return (
        start_of(a) == start_of(b)
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )
