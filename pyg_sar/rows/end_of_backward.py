"""The backward pass that runs: its new gradients, and the work at its end.

Gradients are averaged at the end of a whole backward, whatever it went through: several losses,
several models, layers used twice, backwards inside of it (a reentrant checkpoint). Autograd runs a
queue of callbacks at the end of a pass: the first hook of this library in a pass queues its
:class:`Backward`. Only the queue holds it, so it goes when an exception ends the pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from traceback import walk_stack
from types import FunctionType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.errors import in_call, location
from pyg_sar.comm.ranks import current
from pyg_sar.comm.vote import agree, differ
from pyg_sar.utils.dry_run import described
from pyg_sar.utils.installed import missing
from pyg_sar.utils.tensor_state import digest


class Averager(Protocol):
    """Has gradients of some parameters summed over the ranks."""

    @property
    def is_last(self) -> bool:
        """Whether it sums after the others."""

    def enter(self) -> Backward:
        """Notes that the running backward has come to it."""

    def reduce(self, backward: Backward, new: set[Tensor]) -> list[Tensor]:
        """Sums gradients, `new` on this rank; gives the parameters of which any rank has one."""


class Backward:
    """One backward pass, the outermost.

    Users' hooks of gradients, also of accumulated ones (an optimizer in backward), must see sums
    over all ranks: during the pass they are off their parameters, and at its end they are called.
    Where some ranks alone have hooks, these may read, and nothing else.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.task = torch._C._current_graph_task_id()
        self.is_checked = False  # whether it accumulates gradients of parameters
        self.is_over = False  # whether all gradients have come
        self.are_hooked = 0  # on how many ranks users have such hooks, as far as they have told
        self.models: list[Averager] = []  # that :meth:`enter` was called for
        self.held: list[object] = []  # what lives until the end of the pass
        self._hooks: dict[Tensor, Any] = {}
        self._aside: dict[Tensor, tuple[dict[int, Any], Tensor | None]] = {}  # hooks, .grad before
        self._new: list[Tensor] = []

    def is_hooked(self) -> bool:
        """Whether users have hooks on this rank that are called at the end."""
        return bool(self._aside) or any(self._hooks.values())

    def enter(
        self, model: Averager, parameters: Iterable[Tensor], yet_to_come: Iterable[Tensor]
    ) -> None:
        """Has the gradients of a model summed over the ranks at the end.

        Users' hooks of gradients that are `yet_to_come` are called then.
        """
        self.models.append(model)
        self.add(parameters)
        for p in yet_to_come:
            hooks = p._backward_hooks or {}
            users = {k: h for k, h in hooks.items() if not type(h).__module__.startswith(OURS)}
            if users and not self.is_over and is_accumulated(p):
                self._aside[p] = users, None if p.grad is None else p.grad.clone()
                for key in users:
                    del hooks[key]

    def add(self, parameters: Iterable[Tensor]) -> None:
        """Notes new gradients of parameters of one of these models."""
        for p in parameters:
            if p not in self._hooks:
                self._hooks[p] = p._post_accumulate_grad_hooks
                p._post_accumulate_grad_hooks = {0: self._new.append}

    def __call__(self) -> None:
        """The end of the pass: sums gradients over the ranks, and calls the hooks of users."""
        whole: dict[Tensor, None] = {}
        self.is_over = True
        try:
            if not self.models:
                for model in reversed([*_awaiting(self._comm)]):  # as a backward would come to them
                    model.enter()
            for model in sorted(self.models, key=lambda model: model.is_last):
                whole |= dict.fromkeys(model.reduce(self, set(self._new)))
        finally:
            RUNNING.pop(self._comm, None)
            aside = self._aside
            self._give_hooks_back()
        is_alone = 0 < self.are_hooked < self._comm.size
        try:
            silent: Any = _Silent() if is_alone else nullcontext()  # type: ignore[no-untyped-call]
            with torch.no_grad(), silent:
                called = [
                    name
                    for p in whole
                    if p in aside or p._post_accumulate_grad_hooks
                    for name in _called(p, *aside.get(p, ({}, None)))
                ]
        except BaseException as error:
            self._comm.left_by(error)
            raise
        if is_alone:
            _check_alike([*whole], called)

    def __del__(self) -> None:
        if vars(self).get('_hooks') or vars(self).get('_aside'):  # an exception has ended the pass
            self._give_hooks_back()

    def _give_hooks_back(self) -> None:
        self._new.clear()  # a cycle through torch's hooks would never be collected
        while self._hooks:
            p, hooks = self._hooks.popitem()
            p._post_accumulate_grad_hooks = hooks
        aside, self._aside = self._aside, {}
        for p, (users, _) in aside.items():
            p._backward_hooks.update(users)  # type: ignore[union-attr]


OURS = 'pyg_sar.'
"""What the modules of this library begin with: hooks of other classes are users'."""


def in_hook(*hooks: Any) -> AbstractContextManager[None]:
    """Names users' hooks of a parameter in the place of a layer."""
    return in_call(f'the hook {", ".join(map(described, hooks))} of a parameter')


def _called(p: Tensor, users: dict[int, Any], before: Tensor | None) -> Iterator[str]:
    """Calls users' hooks of a parameter, whose gradient is whole; gives their names."""
    grad = new = p.grad if p.grad is None or before is None else p.grad - before
    version = 0 if new is None else new._version
    for hook in users.values():
        with in_hook(hook):
            result = hook(grad)
        grad = grad if result is None else result
        yield described(hook)
    if new is not None and (grad is not new or new._version != version):
        p.grad = grad if before is None or grad is None else before + grad
    for hook in tuple((p._post_accumulate_grad_hooks or {}).values()):
        with in_hook(hook):
            hook(p)
        yield described(hook)


class _Silent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses messages of hooks that some ranks alone have: the others would not answer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if 'c10d' in func.namespace:
            raise ValueError(
                f'{location()}, which other ranks do not have, communicates (got {func}): set it '
                "on every rank, or have it read this rank's tensors alone"
            )
        return func(*args, **(kwargs or {}))


def _check_alike(parameters: list[Tensor], called: list[str]) -> None:
    """Raises a ValueError if hooks of some ranks have changed what they saw (collective)."""
    states = [digest([t for t in (p, p.grad) if t is not None]) for p in parameters]
    answers = agree((states, called))
    if any(states != answers[0][0] for states, _ in answers):
        odd = next(rank for rank, (_, names) in enumerate(answers) if names)
        names = ', '.join(dict.fromkeys(answers[odd][1]))
        raise differ(
            f'expected hooks of parameters that only read, or are set on every rank (got {names} '
            f'on rank {odd} alone, where they change a gradient or a parameter)',
            odd,
        )


RUNNING: WeakValueDictionary[Comm, Backward] = WeakValueDictionary()
"""The outermost backward pass of a rank that runs, if it has come to a hook of this library."""

_AWAITING: WeakKeyDictionary[Comm, WeakKeyDictionary[Averager, None]] = WeakKeyDictionary()


def _awaiting(comm: Comm) -> WeakKeyDictionary[Averager, None]:
    """Models that have run on a batch, whose backward may come."""
    return _AWAITING.setdefault(comm, WeakKeyDictionary())


def started() -> Backward:
    """The backward pass that runs, noted from its first such call on; called in a backward."""
    comm = current()
    backward = RUNNING.get(comm)
    if backward is None:
        backward = Backward(comm)
        torch.autograd.Variable._execution_engine.queue_callback(backward)
        RUNNING[comm] = backward
    return backward


def await_backward(model: Averager) -> None:
    """Notes that a model has run on a batch: a backward that misses it takes part in its sum.

    On a rank whose batch is empty a loss over all ranks need not depend on the model.
    """
    awaiting = _awaiting(current())
    awaiting.pop(model, None)  # it becomes the last one
    awaiting[model] = None


def has_come(model: Averager) -> None:
    """Notes that the backward of a model has come."""
    _awaiting(current()).pop(model, None)


def is_accumulated(leaf: Tensor) -> bool:
    """In a hook of a leaf: whether the gradient goes to ``.grad``, or to autograd.grad's caller."""
    with torch._C.DisableTorchFunctionSubclass():
        node = torch.autograd.graph.get_gradient_edge(leaf).node
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # "A leaf node was passed ... running autograd.grad()"
        return False


_OF_FUNCTIONS = {
    f.__code__ for f in vars(BackwardCFunction).values() if isinstance(f, FunctionType)
}
if not isinstance(BackwardCFunction.apply, FunctionType):  # one of C has no frame
    raise missing('torch.autograd.function.BackwardCFunction.apply')


def is_inside_a_function() -> bool:
    """Whether an autograd Function's backward runs this one."""
    return any(frame.f_code in _OF_FUNCTIONS for frame, _ in walk_stack(sys._getframe()))
