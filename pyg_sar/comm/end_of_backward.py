"""The backward pass that runs: its new gradients, and the work at its end.

Gradients are averaged at the end of a whole backward, whatever it went through: several losses,
several models, layers used twice, backwards inside of it (a reentrant checkpoint). Autograd runs a
queue of callbacks at the end of a pass: the first hook of this library in a pass queues its
:class:`Backward`. Only the queue holds it, so it goes when an exception ends the pass.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from traceback import walk_stack
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import current
from pyg_sar.ground.private_names import missing

if TYPE_CHECKING:
    from pyg_sar.averaging import Averager


class Backward:
    """One backward pass, the outermost.

    Hooks of users for accumulated gradients (an optimizer in backward) must see sums over all
    ranks: during the pass they are off their parameters, and at its end they are called.

    Attributes:
        task: Autograd's number of it.
        is_checked: Whether it was checked that it accumulates gradients of parameters.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self.task = torch._C._current_graph_task_id()
        self.is_checked = False
        self._models: list[Averager] = []
        self._hooks: dict[Tensor, Any] = {}
        self._new: list[Tensor] = []

    def entered(self, model: Averager) -> bool:
        """Whether :meth:`enter` was called for a model."""
        return model in self._models

    def enter(self, model: Averager, parameters: Iterable[Tensor]) -> None:
        """Has the gradients of a model summed over the ranks at the end."""
        self._models.append(model)
        for p in parameters:
            if p not in self._hooks:
                self._hooks[p] = p._post_accumulate_grad_hooks
                p._post_accumulate_grad_hooks = {0: self._new.append}

    def __call__(self) -> None:
        """The end of the pass: sums gradients over the ranks, and calls the hooks of users."""
        whole: dict[Tensor, None] = {}
        try:
            if not self._models:
                for model in reversed([*self._comm.awaiting]):  # as a backward would come to them
                    model.enter()
            for model in sorted(self._models, key=lambda model: model.is_last):
                whole |= dict.fromkeys(model.reduce(set(self._new)))
        finally:
            self._comm.backward = lambda: None
            self._give_hooks_back()
        for p in whole:
            for hook in tuple((p._post_accumulate_grad_hooks or {}).values()):
                hook(p)

    def __del__(self) -> None:
        self._give_hooks_back()

    def _give_hooks_back(self) -> None:
        self._new.clear()  # a cycle through torch's hooks would never be collected
        while self._hooks:
            p, hooks = self._hooks.popitem()
            p._post_accumulate_grad_hooks = hooks


def running() -> Backward | None:
    """The outermost backward pass that runs, if it has come to a hook of this library.

    It is that of the rank, not of the thread: on a GPU hooks run in a thread of the device.
    """
    return current().backward()


def started() -> Backward:
    """The backward pass that runs, noted from its first such call on; called in a backward."""
    comm = current()
    backward = comm.backward()
    if backward is None:
        backward = Backward(comm)
        torch.autograd.Variable._execution_engine.queue_callback(backward)
        comm.backward = ref(backward)
    return backward


def note_backward_of(tensor: Tensor) -> None:
    """Notes a backward that reaches `tensor`: its gradients are those of all ranks' losses."""
    tensor.register_hook(_note)  # type: ignore[no-untyped-call]


def _note(grad: Tensor) -> None:
    started()


def await_backward(model: Averager) -> None:
    """Notes that a model has run on a batch, and that a backward may come.

    On a rank whose batch is empty a loss over all ranks need not depend on the model. The backward
    of the loss takes part in the sum of the gradients all the same, as the other ranks do.
    """
    awaiting = current().awaiting
    awaiting.pop(model, None)  # it becomes the last one
    awaiting[model] = None


def has_come(model: Averager) -> None:
    """Notes that the backward of a model has come."""
    current().awaiting.pop(model, None)


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
