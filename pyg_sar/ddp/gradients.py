"""Gradients of a model's parameters, made whole at the end of every backward.

torch's DistributedDataParallel arms its hooks in ``forward``, once for one backward: a second one,
``model.module(...)`` or a parameter that is unfrozen later leave a rank's own gradients, silently.
Here nothing is armed. A backward is met at the model's outputs and at its parameters. At its end
``.grad`` becomes the mean over the ranks, for every parameter of which any rank has got a gradient.
What was there before is equal on all ranks, so its mean is itself: accumulated gradients stay right
without being set aside. Nothing is sent while backward still runs; a graph model's parameters are
small beside its rows.

Running statistics that norms have taken of batches travel with the gradients. Ranks of which one
has run a batch in evaluation, or the whole graph, do not meet there: an error on all.
"""

from __future__ import annotations

from typing import Any, cast
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from pyg_sar.comm import all_reduce_sum, await_device, world_size
from pyg_sar.comm.end_of_backward import (
    await_backward,
    has_come,
    is_accumulated,
    is_inside_a_function,
    running,
    started,
)
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.ddp.buckets import SUM, buckets_of
from pyg_sar.ddp.own_tensors import divide_gradients, leaves_behind
from pyg_sar.ddp.same_model import check_same_values
from pyg_sar.ground.nested import leaves_of
from pyg_sar.norm import RunningStatistics
from pyg_sar.own_rows import OwnRows
from pyg_sar.rows.replicated import average_gradients, mean_of_ranks
from pyg_sar.rows.rows import Rows

STEPS_BETWEEN_CHECKS = 50
"""How many backwards, to their ends, lie between two comparisons of the ranks' numbers."""


class Gradients:
    """Averages the gradients of a module over the ranks; without a module it does nothing.

    Those in one bucket have no more than `bucket_bytes`, unless one has. While it `accumulates`
    gradients only gather.
    """

    is_last = False

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: float = 0,
    ) -> None:
        self.accumulates = False
        self._group, self._bucket_bytes = group, bucket_bytes
        self._module = None if module is None else ref(module)
        self._hooks: dict[Tensor, int] = {}  # of every parameter, by their keys there
        self._learning: list[Tensor] = []  # the parameters that need a gradient
        self._gathered: set[Tensor] = set()
        self._has_rows = False  # whether a forward was given rows of the whole graph
        self._asked: dict[Tensor, Tensor] = {}  # gradients for autograd.grad's caller
        self._forwards: set[str] = set()  # on batches, in words
        self._met: set[str] = set()  # of these, where a backward has come through
        self._accumulating = -1  # autograd's number of the backward that adds to ``.grad``
        self._handles: list[RemovableHandle] = []
        self._outermost: torch.nn.Module | None = None
        self._num_steps = 0
        if module is None:
            return
        for hook in list(module._forward_pre_hooks.values()):
            before = getattr(hook, '__self__', None)
            if isinstance(before, Gradients):  # it was parallel already
                before._let_go()
        for inner in module.modules():  # users call layers, too
            if inner is module or any(isinstance(m, SARConv) for m in inner.modules()):
                self._handles += [
                    inner.register_forward_pre_hook(self.before_forward),
                    inner.register_forward_hook(
                        self.after_forward, with_kwargs=True, always_call=True
                    ),
                ]
        self._watch(module)

    def __reduce__(self) -> Any:
        """A copy of the module alone is a plain one."""
        return Gradients, ()

    @torch.compiler.disable
    def before_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Notes whose forward the user has called: of the model, or of a layer in it."""
        if self._outermost is None or (self._module is not None and module is self._module()):
            self._outermost = module

    @torch.compiler.disable
    def after_forward(self, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Has the backward of a forward noted, and gradients that leave the model divided."""
        if module is not self._outermost:
            return
        self._outermost = None
        model = None if self._module is None else self._module()
        if model is None or world_size() == 1:
            return
        found = [t for t in leaves_of(out) if isinstance(t, Tensor)]
        if not torch.is_grad_enabled():  # no backward comes that would tell of a lost rank
            for device in {t.device for t in found}:
                await_device(device, 'the end of a forward')
        given = [t for t in leaves_of((args, kwargs)) if isinstance(t, Tensor)]
        outputs = [t for t in found if t.requires_grad]
        words = ''  # on a cut graph convs compare more
        if not any(isinstance(t, Rows) for t in given):
            words = f'a batch in {"training" if module.training else "evaluation"}'
        for output in outputs:
            if not output.is_leaf:
                output.register_hook(_Entry(self, words))  # type: ignore[no-untyped-call]
        # What runs in a backward computes again what was seen before, from stand-ins.
        if torch._C._current_graph_task_id() != -1:
            return
        if outputs and words:
            self._forwards.add(words)
            await_backward(self)
        if any(isinstance(t, Rows) for t in (*given, *found)):
            # Beside rows a plain tensor is one of the whole graph, not of this rank.
            self._has_rows = True
            others = (t for t in module.parameters() if t not in self._hooks)
            average_gradients(t for t in others if not isinstance(t, OwnRows))
        elif not self._has_rows:
            known = set(model.parameters())
            behind = leaves_behind([*outputs, *(t for t in given if t.requires_grad)])
            # A NodeEmbedding divides those of its rows by itself.
            own = [t for t in behind if t not in known and not isinstance(t, OwnRows)]
            divide_gradients(leaf for leaf in own if not _is_watched(leaf))

    def is_alive(self) -> bool:
        """Whether there is a module: it may have been wrapped again, or be gone."""
        return self._module is not None and self._module() is not None

    def enter(self) -> None:
        """Notes that the backward that runs comes to the module."""
        backward = started()
        if not backward.meets(self):
            module = None if self._module is None else self._module()
            assert module is not None
            self._watch(module)  # parameters that were put in later, too
            self._learning = [p for p in self._hooks if p.requires_grad]
            backward.enter(self, self._learning)

    def note(self, p: Tensor, grad: Tensor) -> Tensor | None:
        """Notes a gradient; returns one if it is for the caller of torch.autograd.grad."""
        task, backward = torch._C._current_graph_task_id(), running()
        is_nested = backward is not None and task != backward.task
        if backward is not None and backward.meets(self) and (is_nested or backward.is_checked):
            if not is_nested:
                self._accumulating = task
            return None
        if is_accumulated(p):
            self.enter()
            backward = started()
            backward.is_checked, self._accumulating = True, backward.task
            return None
        if is_nested or is_inside_a_function():  # a part of that Function's gradient
            return None
        self.enter()
        if self.accumulates or grad.requires_grad:
            raise RuntimeError(
                'torch.autograd.grad would give the share of one rank of the gradient of a '
                f'parameter of shape {tuple(p.shape)}, as with create_graph=True and in no_sync() '
                'nothing is summed: call loss.backward() and read .grad'
            )
        self._asked[p] = grad.clone(memory_format=torch.contiguous_format)
        return self._asked[p]  # whole when this backward ends

    def reduce(self, new: set[Tensor]) -> list[Tensor]:
        """Replaces gradients by their mean over the ranks (collective: an all-reduce per bucket).

        In this backward `new` have got a gradient on this rank. Gives those that any rank has a new
        gradient of; none while gradients only gather.
        """
        self._gathered.update(p for p in self._learning if p in new)
        module = None if self._module is None else self._module()
        if self.accumulates or module is None:
            return []
        has_come(self)
        whole: list[Tensor] = []
        with torch.no_grad():
            statistics = RunningStatistics(module)
            vectors = statistics.packed()
            buckets = buckets_of(self._learning, self._bucket_bytes)
            is_asked = False  # whether any rank has gradients for autograd.grad's caller
            for bucket in buckets:
                dtype, device = bucket.kind
                asked = torch.full((1,), float(bool(self._asked)), dtype=dtype, device=device)
                more = torch.cat([asked, vectors.pop(bucket.kind, asked[:0])])
                new_of_it, more = bucket.average(self._gathered, more, self._summed)
                whole += new_of_it
                is_asked |= bool(more[0].real > 0)
                if more.numel() > 1:
                    statistics.set(bucket.kind, more[1:])
            for kind, vector in vectors.items():  # of a dtype or device that no parameter has
                statistics.set(kind, self._summed(vector))
            for bucket in buckets if is_asked else ():
                bucket.average_asked(self._asked, self._summed)
        self._asked.clear()
        self._gathered.clear()
        self._forwards.clear()
        self._met.clear()
        self._num_steps += 1
        if self._num_steps % STEPS_BETWEEN_CHECKS == 0:
            check_same_values(
                module,
                f'at backward {self._num_steps}',
                'what changes it on one rank changes it on all (an optimizer, a schedule, a '
                'number drawn without a common seed)',
            )
        return whole

    def _summed(self, vector: Tensor) -> Tensor:
        forwards = ' and '.join(sorted(self._met - {''} or self._forwards))
        return all_reduce_sum(vector, f'{SUM} of {forwards}' if forwards else SUM, self._group)

    def _let_go(self) -> None:
        self._module = None
        for handle in self._handles:
            handle.remove()

    def _watch(self, module: torch.nn.Module) -> None:
        """Has the gradients of all parameters noted."""
        before, self._hooks = self._hooks, {}
        for p in module.parameters():
            key = before.get(p)
            if key is None or key not in (p._backward_hooks or ()):
                if is_lazy(p) or not (p.is_floating_point() or p.is_complex()):
                    continue
                needs_gradient = p.requires_grad
                p.requires_grad_(True)  # a frozen one takes no hook
                handle = p.register_hook(_Arrival(self, p))  # type: ignore[no-untyped-call]
                p.requires_grad_(needs_gradient)
                key = handle.id
                _put_first(cast(Any, p._backward_hooks), key)
                self._handles.append(handle)
            self._hooks[p] = key


def _put_first(hooks: dict[int, Any], first: int) -> None:
    """Autograd calls hooks in the order of the plain dict that an OrderedDict has in it."""
    items = [(first, hooks[first]), *((k, v) for k, v in hooks.items() if k != first)]
    hooks.clear()
    hooks.update(items)


class _Entry:
    """The hook of a module's output: a backward comes to the module."""

    def __init__(self, gradients: Gradients, forward: str = '') -> None:
        self.gradients, self.forward = ref(gradients), forward

    def __call__(self, grad: Tensor) -> None:
        gradients = self.gradients()
        if gradients is not None and gradients.is_alive():
            gradients.enter()
            gradients._met.add(self.forward)


class _Arrival:
    """The hook of a parameter: a gradient comes, by whatever way."""

    __torch_unserializable__ = True
    averages = True

    def __init__(self, gradients: Gradients, parameter: Tensor) -> None:
        self.gradients, self.parameter = ref(gradients), ref(parameter)

    def __call__(self, grad: Tensor) -> Tensor | None:
        gradients, p = self.gradients(), self.parameter()
        if gradients is None or p is None or not gradients.is_alive():
            return None
        if gradients._accumulating != torch._C._current_graph_task_id():
            if world_size() == 1:
                return None
            asked = gradients.note(p, grad)
            if asked is not None:
                return asked
        is_last = all(isinstance(hook, _Arrival) for hook in (p._backward_hooks or {}).values())
        is_batch = bool(gradients._met - {''})
        if is_last or is_batch or isinstance(p, OwnRows) or not is_accumulated(p):
            return None
        return mean_of_ranks(grad)  # for the user's hooks; the mean of that is itself


def _is_watched(p: Tensor) -> bool:
    hooks = (p._backward_hooks or {}).values()
    found = (hook.gradients() for hook in hooks if isinstance(hook, _Arrival))
    return any(gradients is not None and gradients.is_alive() for gradients in found)
