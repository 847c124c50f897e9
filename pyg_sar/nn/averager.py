"""Averages gradients of parameters over the ranks at the end of every backward.

torch's DistributedDataParallel arms its hooks in ``forward``, for one backward: a second one, or a
method of the model, leaves a rank's own gradients, silently. Here each parameter has a hook that
lasts. At the end of a backward that comes to one of them ``.grad`` becomes the mean over the ranks,
for every parameter of which any rank has got a gradient. Gradients from before are equal on all
ranks, which a checksum tells, so they are their own mean: accumulated gradients stay right. Nothing
is sent while backward still runs, as a graph model's parameters are small beside its rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyg_sar.comm.collectives import all_reduce_sum, only_once
from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import check_own, chosen, current
from pyg_sar.comm.vote import agree, differ
from pyg_sar.nn.buckets import SUM, buckets_of, check_before, numbers_of_gradients
from pyg_sar.rows.end_of_backward import (
    OURS,
    RUNNING,
    Backward,
    in_hook,
    is_accumulated,
    is_inside_a_function,
    started,
)
from pyg_sar.rows.one_loss import is_averaged, mean_of_ranks
from pyg_sar.rows.rows import Rows
from pyg_sar.utils.tensor_state import digest

MIB = 2**20


class Averager:
    """Averages the gradients of parameters that layers read outside of any model.

    A bucket has at most `bucket_bytes`, or one larger gradient. While it `accumulates`, gradients
    only gather. The averager of a model is :class:`pyg_sar.nn.gradients.Gradients`.
    """

    is_last = True  # of the averagers of a backward
    is_alive = True  # whether it averages: its model may be gone

    def __init__(
        self, group: dist.ProcessGroup | None = None, bucket_bytes: float = 25 * MIB
    ) -> None:
        self.accumulates = False
        self.bucket_bytes = bucket_bytes
        self._group = group
        self._watched: list[ref[Tensor]] = []  # in the order in which layers met them
        self._learning: list[Tensor] = []  # those of the backward that runs
        self._gathered: set[Tensor] = set()
        # Numbers of gradients from before; None where these are of this rank alone.
        self._before: dict[Tensor, int] | None = {}
        self._asked: dict[Tensor, Tensor] = {}  # gradients for autograd.grad's caller
        self._accumulating = -1  # autograd's number of the backward that adds to ``.grad``
        # The ids of the parameters of its model in the backward of this number.
        self.known, self.known_in = set[int](), -1

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Notes gradients of parameters from now on; lazy ones have none yet."""
        for p in tensors:
            hooks = (p._backward_hooks or {}).values()
            if self.is_alive and [h.averager() for h in hooks if isinstance(h, Arrival)] == [self]:
                continue
            if is_lazy(p) or not (p.is_floating_point() or p.is_complex()) or _averages(self, p):
                continue
            is_frozen = not p.requires_grad
            if is_frozen:  # it takes no hook
                p.requires_grad_(True)
            handle = p.register_hook(Arrival(self, p))  # type: ignore[no-untyped-call]
            if is_frozen:
                p.requires_grad_(False)
            _put_first(cast(Any, p._backward_hooks), handle.id)
            self._watched.append(ref(p))

    def owner(self) -> object:
        """What must not go while a backward runs that has come to it."""
        return None

    def has(self, p: Tensor) -> bool:
        """Whether it averages the gradients of a parameter that it watches."""
        return True

    def take(self, p: Tensor) -> None:
        """Takes a parameter over, in a backward, from a model that is gone or has it no more."""
        self._watched.append(ref(p))
        backward = RUNNING.get(current())
        if backward is not None and self in backward.models:
            self._learning.append(p)
            if self._before is not None:
                self._before |= numbers_of_gradients([[p]])
            backward.add([p])

    def is_of_batches(self) -> bool:
        """Whether gradients of the backward that runs are those of batches."""
        return False

    def parameters(self) -> list[Tensor]:
        """The parameters that may get a gradient, in the same order on all ranks."""
        self._watched = [reference for reference in self._watched if reference() is not None]
        return [p for reference in self._watched if (p := reference()) is not None]

    def enter(self, at: Tensor | None = None) -> Backward:
        """Notes that the running backward has come to a parameter; `at` is one in its hooks."""
        backward = started()
        if self not in backward.models:
            self._learning = [p for p in self.parameters() if p.requires_grad]
            # Which parameters of no model are still there may differ: each has its own number.
            groups = [[p] for p in self._learning] if self.is_last else [self._learning]
            is_own = self.accumulates or self._gathered
            self._before = None if is_own else numbers_of_gradients(groups)
            backward.held.append(self.owner())
            is_whole = not (self.accumulates or self.is_of_batches())
            others = (p for p in self._learning if p is not at and not isinstance(p, Rows))
            backward.enter(self, self._learning, others if is_whole else ())
        return backward

    def note(self, p: Tensor, grad: Tensor) -> Tensor | None:
        """Notes a gradient; returns one for the caller of torch.autograd.grad."""
        comm = current()
        if comm.size == 1:
            return None
        task, backward = torch._C._current_graph_task_id(), RUNNING.get(comm)
        is_nested = backward is not None and task != backward.task
        if backward is not None and self in backward.models and (is_nested or backward.is_checked):
            if not is_nested:
                self._accumulating = task
            return None
        if is_accumulated(p):
            if backward is None or self not in backward.models:
                backward = self.enter(p)
            backward.is_checked, self._accumulating = True, backward.task
            return None
        if is_nested or is_inside_a_function():  # a part of that Function's gradient
            return None
        if grad.requires_grad and self.is_last:
            return only_once(mean_of_ranks(grad.detach()), grad)
        self.enter(p)
        if grad.requires_grad:
            raise RuntimeError(
                f'torch.autograd.grad of a parameter of shape {tuple(p.shape)} takes no '
                'create_graph=True: on a graph that is cut pyg_sar computes no second derivatives; '
                'first-order forms (FOMAML, Reptile) are exact'
            )
        if self.accumulates:
            raise RuntimeError(
                'torch.autograd.grad would give the share of one rank of the gradient of a '
                f'parameter of shape {tuple(p.shape)}, as in no_sync() nothing is summed: call '
                'loss.backward() and read .grad'
            )
        self._asked[p] = grad.clone(memory_format=torch.contiguous_format)
        return self._asked[p]  # whole when this backward ends

    def reduce(self, backward: Backward, new: set[Tensor]) -> list[Tensor]:
        """Replaces gradients by their mean over the ranks (collective: an all-reduce per bucket).

        In this backward `new` have got a gradient on this rank. Returns the parameters of which any
        rank has a new gradient; none while gradients only gather.
        """
        self._gathered.update(p for p in self._learning if p in new)
        if self.accumulates or not self.is_alive:
            return []
        with torch.no_grad():
            whole = self.average(backward)
        self._learning, self._before = [], {}
        self._asked.clear()
        self._gathered.clear()
        return whole

    def average(self, backward: Backward) -> list[Tensor]:
        """Averages the leaves with a gradient, which are the same on all ranks."""
        parameters = [p for p in self._learning if p in self._gathered or p in self._asked]
        return self.average_of(backward, parameters, {})

    def average_of(
        self,
        backward: Backward,
        parameters: list[Tensor],
        more: dict[tuple[torch.dtype, torch.device], Tensor],
    ) -> list[Tensor]:
        """Averages gradients and, in place, the vectors `more` by dtype and device."""
        whole: list[Tensor] = []
        is_asked = False  # whether any rank has gradients for autograd.grad's caller
        flags = [bool(self._asked), backward.is_hooked()]
        buckets, vectors = buckets_of(parameters, self.bucket_bytes), dict(more)
        for bucket in buckets:
            vector = vectors.pop(bucket.kind, None)
            new, counts, mean = bucket.average(
                self._gathered, flags, vector, self._before or {}, self.summed, self.parted
            )
            whole += new
            is_asked |= counts[0] > 0
            backward.are_hooked = max(backward.are_hooked, counts[1])
            if mean is not None:
                more[bucket.kind] = mean
        for vector in vectors.values():  # of a dtype or device that no parameter has
            self.summed(vector)
        for bucket in buckets if is_asked else ():
            bucket.average_asked(self._asked, self.summed)
        return whole

    def summed(self, vector: Tensor) -> Tensor:
        """Sums a vector over the ranks, in place."""
        return all_reduce_sum(vector, SUM, self._group)

    def parted(self, parameters: list[Tensor]) -> None:
        """Raises a ValueError on all ranks if parameters or gradients from before differ."""
        before = None if self._before is None else [self._before.get(p, 0) for p in parameters]
        answers = agree((digest(parameters), before, bool(self._gathered)))
        if len({number for number, _, _ in answers}) > 1:
            raise differ(f'parameters outside of a model must be equal on all ranks: {PARTED}', 0)
        if any(accumulates for _, _, accumulates in answers):
            check_before([numbers for _, numbers, _ in answers])


PARTED = (
    'a random number, a branch on data, a setting or a step of an optimizer on one rank alone '
    'changes them there: run the same lines on every rank, with the same seed'
)
"""What makes parameters differ, and the way out."""


def average_gradients(tensors: Iterable[Tensor]) -> None:
    """Averages, from now on, gradients of tensors that layers read as parameters.

    The backward of a layer alone gives the share of a rank.
    """
    learning = [tensor for tensor in tensors if tensor.requires_grad]
    for tensor in () if is_averaged(*learning) else learning:
        if tensor.is_leaf and not (isinstance(tensor, Rows) or is_averaged(tensor)):
            _outside_of_models().watch([tensor])


def _outside_of_models() -> Averager:
    comm = current()
    return _of_comm.get(comm) or _of_comm.setdefault(comm, Averager())


_of_comm: WeakKeyDictionary[Comm, Averager] = WeakKeyDictionary()


class Arrival:
    """The hook of a parameter, which gets every gradient of it."""

    __torch_unserializable__ = True

    def __init__(self, averager: Averager, parameter: Tensor) -> None:
        self.averager, self._parameter = ref(averager), ref(parameter)

    def __call__(self, grad: Tensor) -> Tensor | None:
        """Notes the gradient; returns that of all ranks where somebody reads it at once."""
        averager, p = self.averager(), self._parameter()
        if p is None:
            return None
        task = torch._C._current_graph_task_id()
        is_known = averager is not None and averager.known_in == task and id(p) in averager.known
        if not is_known and (averager is None or not averager.has(p)):
            averager = self._handed_over(p)
        if averager is None:
            return None
        if chosen.value is not None:
            check_own(p)
        if averager._accumulating != task:
            asked = averager.note(p, grad)
            if asked is not None:
                return asked
        is_last = all(isinstance(hook, Arrival) for hook in (p._backward_hooks or {}).values())
        if is_last or averager.is_of_batches() or isinstance(p, Rows) or not is_accumulated(p):
            return None
        hooks = (p._backward_hooks or {}).values()
        with in_hook(*(h for h in hooks if not type(h).__module__.startswith(OURS))):
            return mean_of_ranks(grad)  # for the user's hooks; the mean of that is itself

    def _handed_over(self, p: Tensor) -> Averager | None:
        """Who averages the gradients of a parameter that its model has lost, if no other hook."""
        hooks = [hook for hook in (p._backward_hooks or {}).values() if isinstance(hook, Arrival)]
        others = [hook.averager() for hook in hooks if hook is not self]
        # A copy of a hook is that of a copy.
        if self not in hooks or any(other is not None and other.has(p) for other in others):
            return None
        averager = _outside_of_models()
        self.averager = ref(averager)
        averager.take(p)
        return averager


def _averages(averager: Averager, p: Tensor) -> bool:
    """Whether an averager has a parameter; that of a model takes it from one outside of models."""
    hooks = cast(dict[int, Any], p._backward_hooks or {})
    arrivals = {key: hook for key, hook in hooks.items() if isinstance(hook, Arrival)}
    for key, hook in arrivals.items():
        other = hook.averager()
        is_gone = other is None or not other.is_alive
        if other is None or is_gone or (other.is_last and not averager.is_last):
            del hooks[key]
    return any(hook.averager() is averager for hook in arrivals.values())


def _put_first(hooks: dict[int, Any], first: int) -> None:
    """Autograd calls hooks in the order of the plain dict inside an OrderedDict."""
    items = [(first, hooks[first]), *((k, v) for k, v in hooks.items() if k != first)]
    hooks.clear()
    hooks.update(items)
