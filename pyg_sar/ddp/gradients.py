"""Gradients of a model's parameters, made whole at the end of every backward.

torch's DistributedDataParallel arms its hooks in ``forward``, once for one backward: a second one,
``model.module(...)`` or a parameter that is unfrozen later leave a rank's own gradients, silently.
Here nothing is armed. A backward is met at the model's outputs and at its parameters. At its end
``.grad`` becomes the mean over the ranks, for every parameter of which any rank has got a gradient.
What was there before is equal on all ranks, so its mean is itself: accumulated gradients stay right
without being set aside. The price is that nothing is sent while backward still runs; a graph
model's parameters are small beside its rows.

Running statistics that norms have taken of batches travel with the gradients. Ranks of which one
has run a batch in evaluation, or the whole graph, do not meet there: an error on all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast
from weakref import ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from pyg_sar.comm import all_reduce_sum, await_device, check_arrived, world_size
from pyg_sar.comm.end_of_backward import (
    await_backward,
    has_come,
    is_accumulated,
    is_inside_a_function,
    running,
    started,
)
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.ddp.own_tensors import divide_gradients, leaves_behind
from pyg_sar.ddp.same_model import check_same_values
from pyg_sar.norm import RunningStatistics
from pyg_sar.own_rows import OwnRows
from pyg_sar.rows.replicated import average_gradients, mean_of_ranks
from pyg_sar.rows.rows import Rows
from pyg_sar.shard.nested import leaves_of

STEPS_BETWEEN_CHECKS = 50
"""How many backwards, to their ends, lie between two comparisons of the ranks' numbers."""


class Gradients:
    """Averages the gradients of a module over the ranks; without a module it does nothing.

    Those in one bucket have no more than `bucket_bytes`, unless one has. While it `accumulates`
    gradients only gather.
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        group: dist.ProcessGroup | None = None,
        bucket_bytes: float = 0,
    ) -> None:
        self.accumulates = False
        self._group, self._bucket_bytes = group, bucket_bytes
        self._module = None if module is None else ref(module)
        self._parameters: list[torch.nn.Parameter] = []
        self._gathered: set[Tensor] = set()
        self._has_rows = False  # whether a forward was given rows of the whole graph
        self._asked: dict[Tensor, Tensor] = {}  # gradients for autograd.grad's caller
        self._is_asked = False  # whether a rank has any
        self._forwards: set[str] = set()  # on batches, in words
        self._met: set[str] = set()  # of these, where a backward has come through
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
        self._watch(module.parameters())

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
        if model is None or not self._is_parallel:
            return
        found = [t for t in leaves_of(out) if isinstance(t, Tensor)]
        if not torch.is_grad_enabled():  # no backward comes that would tell of a lost rank
            for device in {t.device for t in found}:
                await_device(device, 'the end of a forward')
        outputs = [t for t in found if t.requires_grad]
        words = ''  # on a cut graph convs compare more
        if not any(isinstance(t, Rows) for t in leaves_of((args, kwargs))):
            words = f'a batch in {"training" if module.training else "evaluation"}'
        for output in outputs:
            if not output.is_leaf:
                output.register_hook(_Entry(self, words))  # type: ignore[no-untyped-call]
        # What runs in a backward computes again what was seen before, from stand-ins.
        if torch._C._current_graph_task_id() == -1:
            if outputs and words:
                self._forwards.add(words)
                await_backward(self)
            given = [t for t in leaves_of((args, kwargs)) if isinstance(t, Tensor)]
            if any(isinstance(t, Rows) for t in (*given, *found)):
                # Beside rows a plain tensor is one of the whole graph, not of this rank.
                self._has_rows = True
                average_gradients(
                    t
                    for t in module.parameters()
                    if not _is_watched(t) and not isinstance(t, OwnRows)
                )
                return
            known = set(model.parameters())
            behind = leaves_behind([*outputs, *(t for t in given if t.requires_grad)])
            # A NodeEmbedding divides those of its rows by itself.
            own = [t for t in behind if t not in known and not isinstance(t, OwnRows)]
            if not self._has_rows:
                divide_gradients(leaf for leaf in own if not _is_watched(leaf))

    def enter(self) -> None:
        """Notes that the backward that runs comes to the module."""
        backward = started()
        if not backward.meets(self):
            module = None if self._module is None else self._module()
            assert module is not None
            self._parameters = [p for p in module.parameters() if p.requires_grad]
            self._watch(self._parameters)  # those that were put in later, too
            backward.enter(self, self._parameters)

    def reduce(self, new: set[Tensor]) -> list[Tensor]:
        """Replaces gradients by their mean over the ranks (collective: an all-reduce per bucket).

        In this backward `new` have got a gradient on this rank. Gives those that any rank has a new
        gradient of; none while gradients only gather.
        """
        self._gathered.update(p for p in self._parameters if p in new)
        module = None if self._module is None else self._module()
        if self.accumulates or module is None:
            return []
        has_come(self)
        whole: list[Tensor] = []
        with torch.no_grad():
            statistics = RunningStatistics(module)
            vectors = statistics.packed()
            for bucket in self._buckets():
                kind = bucket[0].dtype, bucket[0].device
                vector = vectors.pop(kind, bucket[0].new_empty(0))
                new_of_it, total = self._reduce(bucket, vector)
                whole += new_of_it
                if vector.numel():
                    statistics.set(kind, total)
            for kind, vector in vectors.items():  # of a dtype or device that no parameter has
                statistics.set(kind, self._summed(vector))
            if self._is_asked:
                self._reduce_asked()
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

    def ask(self, p: Tensor, grad: Tensor) -> Tensor:
        """A gradient for autograd.grad's caller, which is whole when this backward ends."""
        if self.accumulates or grad.requires_grad:
            raise RuntimeError(
                'torch.autograd.grad would give the share of one rank of the gradient of a '
                f'parameter of shape {tuple(p.shape)}, as with create_graph=True and in no_sync() '
                'nothing is summed: call loss.backward() and read .grad'
            )
        self._asked[p] = grad.clone(memory_format=torch.contiguous_format)
        return self._asked[p]

    def _reduce_asked(self) -> None:
        for bucket in self._buckets():
            shares = [self._asked.get(p, torch.zeros_like(p)) for p in bucket if _size(p)]
            if not shares:
                continue
            total = torch.cat([share.reshape(-1) for share in shares]) / world_size()
            self._summed(total)
            check_arrived('the sum of the gradients of parameters')
            for share, mean in zip(
                shares, torch.split(total, [s.numel() for s in shares]), strict=True
            ):
                share.copy_(mean.view_as(share))
        self._asked.clear()
        self._is_asked = False

    def _summed(self, vector: Tensor) -> Tensor:
        forwards = ' and '.join(sorted(self._met - {''} or self._forwards))
        of_what = f' of {forwards}' if forwards else ''
        what = f'the sum of the gradients of parameters{of_what}'
        return all_reduce_sum(vector, what, self._group)

    def _reduce(self, bucket: Sequence[Tensor], more: Tensor) -> tuple[list[Tensor], Tensor]:
        """Of one bucket; the sum of `more`, divided as gradients are, is the second result."""
        flags = [float(p in self._gathered and p.grad is not None) for p in bucket]
        for p in bucket:
            if p.grad is not None and p.grad.requires_grad:
                raise RuntimeError(
                    'expected backward() without create_graph=True: on a graph that is cut pyg_sar '
                    'computes no second derivatives'
                )
            if p.grad is not None and p.grad.is_sparse and not isinstance(p, OwnRows):
                p.grad = p.grad.to_dense()
        flags.append(float(bool(self._asked)))
        shared = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket if _size(p)]
        flags_of_all = torch.tensor(flags, dtype=bucket[0].dtype, device=bucket[0].device)
        total = torch.cat([*(t.reshape(-1) for t in shared), flags_of_all, more])
        total /= world_size()
        del shared
        self._summed(total)
        sizes = [_size(p) for p in bucket]
        *means, of_all, more = torch.split(total, [*sizes, len(flags), more.numel()])
        *shares, asked = of_all.real.tolist()
        self._is_asked |= asked > 0
        check_arrived('the sum of the gradients of parameters')  # before anyone's gradient changes
        whole = []
        for p, mean, share in zip(bucket, means, shares, strict=True):
            if share > 0:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                if not isinstance(p, OwnRows):
                    p.grad.copy_(mean.view_as(p))
                whole.append(p)
        return whole, more

    def _buckets(self) -> Iterator[list[Tensor]]:
        """The parameters by dtype and device, in their order, some at a time."""
        kinds: dict[Any, list[Tensor]] = {}
        for p in self._parameters:
            bucket = kinds.setdefault((p.dtype, p.device), [])
            size = sum(_size(other) for other in (*bucket, p)) * p.element_size()
            if bucket and size > self._bucket_bytes:
                yield list(bucket)
                bucket.clear()
            bucket.append(p)
        yield from kinds.values()

    @property
    def _is_parallel(self) -> bool:
        return self._module is not None and world_size() > 1

    def _let_go(self) -> None:
        self._module = None
        for handle in self._handles:
            handle.remove()

    def _watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        for p in parameters:
            may_learn = not is_lazy(p) and (p.is_floating_point() or p.is_complex())
            if may_learn and not any(h.gradients() is self for h in _watching(p)):
                needs_gradient = p.requires_grad
                p.requires_grad_(True)  # a frozen one takes no hook
                handle = p.register_hook(_Arrival(self, p))  # type: ignore[no-untyped-call]
                _put_first(cast(Any, p._backward_hooks), handle.id)
                self._handles.append(handle)
                p.requires_grad_(needs_gradient)


def _put_first(hooks: dict[int, Any], first: int) -> None:
    """Autograd calls hooks in the order of the plain dict that an OrderedDict has in it."""
    items = [(first, hooks[first]), *((k, v) for k, v in hooks.items() if k != first)]
    hooks.clear()
    hooks.update(items)


def _size(p: Tensor) -> int:
    """How many of its numbers the ranks have in common."""
    return 0 if isinstance(p, OwnRows) else p.numel()


class _Entry:
    """The hook of a module's output: a backward comes to the module."""

    def __init__(self, gradients: Gradients, forward: str = '') -> None:
        self.gradients, self.forward = ref(gradients), forward

    def __call__(self, grad: Tensor) -> None:
        gradients = self.gradients()
        if gradients is not None and gradients._is_parallel:
            gradients.enter()
            gradients._met.add(self.forward)


class _Arrival(_Entry):
    """The hook of a parameter: a gradient comes, by whatever way."""

    __torch_unserializable__ = True
    averages = True

    def __init__(self, gradients: Gradients, parameter: Tensor) -> None:
        super().__init__(gradients)
        self.parameter = ref(parameter)

    def __call__(self, grad: Tensor) -> Tensor | None:  # type: ignore[override]
        gradients, parameter = self.gradients(), self.parameter()
        if gradients is None or parameter is None or not gradients._is_parallel:
            return None
        asked = self._note(gradients, parameter, grad)
        if asked is not None:
            return asked
        is_last = len(parameter._backward_hooks or ()) == len(_watching(parameter))
        is_batch = bool(gradients._met - {''})
        if is_last or is_batch or isinstance(parameter, OwnRows) or not is_accumulated(parameter):
            return None
        return mean_of_ranks(grad)  # for the user's hooks; the mean of that is itself

    def _note(self, gradients: Gradients, parameter: Tensor, grad: Tensor) -> Tensor | None:
        backward = running()
        is_nested = backward is not None and torch._C._current_graph_task_id() != backward.task
        if (
            backward is not None
            and backward.meets(gradients)
            and (is_nested or backward.is_checked)
        ):
            return None
        if not is_accumulated(parameter):
            if is_nested or is_inside_a_function():  # a part of that Function's gradient
                return None
            gradients.enter()
            return gradients.ask(parameter, grad)
        gradients.enter()
        started().is_checked = True
        return None


def _watching(p: Tensor) -> list[_Arrival]:
    hooks = (p._backward_hooks or {}).values()
    return [hook for hook in hooks if isinstance(hook, _Arrival)]


def _is_watched(p: Tensor) -> bool:
    return any(hook.gradients() is not None for hook in _watching(p))
