"""The averager of a model: gradients of its parameters become the mean over the ranks.

As with torch's DistributedDataParallel the gradient is that of the mean of the P ranks' losses,
``M = (L_1 + ... + L_P) / P``. A loss that is equal on all ranks is M itself: a penalty of the
weights counts once, and what meets rows counts in full (:mod:`pyg_sar.rows.one_loss`).

Hooks see a backward at the model's parameters, and at the outputs of the model and of its layers:
so also on a rank whose loss does not depend on the parameters.

Running statistics of batches travel with the gradients. All ranks raise an error if some have run a
batch in training and others one in evaluation, or the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from pyg_sar.comm.collectives import all_reduce_sum, await_device
from pyg_sar.comm.ranks import check_lives, current, world_size
from pyg_sar.nn.averager import MIB, PARTED, Averager
from pyg_sar.nn.batch_norm import RunningStatistics
from pyg_sar.nn.buckets import SUM, common
from pyg_sar.nn.layer import evaluated
from pyg_sar.nn.sar_conv import SARConv
from pyg_sar.nn.wrap import check_same_values
from pyg_sar.rows.end_of_backward import Backward, await_backward, has_come
from pyg_sar.rows.rows import Rows
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.dry_run import is_hidden
from pyg_sar.utils.nested import leaves_of
from pyg_sar.utils.tensor_state import digest

STEPS_BETWEEN_CHECKS = 50
"""Complete backwards from one comparison of the ranks' buffers to the next."""


class Gradients(Averager):
    """Averages the gradients of a model over the ranks; a copy has no model and does nothing."""

    is_last = is_alive = False

    def __init__(
        self, group: dist.ProcessGroup | None = None, bucket_bytes: float = 25 * MIB
    ) -> None:
        super().__init__(group, bucket_bytes)
        # The model; None if it is gone or has another averager.
        self.model: Callable[[], torch.nn.Module | None] = lambda: None
        self._forwards: set[str] = set()  # on batches, in words
        self._passed: set[str] = set()  # forwards that a backward has passed
        self._handles: list[RemovableHandle] = []
        self._outermost: torch.nn.Module | None = None
        self._num_steps = 0

    def __reduce__(self) -> Any:
        return Gradients, (None, self.bucket_bytes)

    def at(self, model: torch.nn.Module) -> Gradients:
        """Watches forwards of a model and of its layers, as users call layers, too."""
        for module in model.modules():
            if module is model or any(isinstance(m, SARConv) for m in module.modules()):
                self._handles += [
                    module.register_forward_pre_hook(self.before_forward),
                    module.register_forward_hook(
                        self.after_forward, with_kwargs=True, always_call=True
                    ),
                ]
        return self

    def of(self, model: torch.nn.Module) -> None:
        """Averages the gradients of a model from now on; copies have hooks of forwards already."""
        me = ref(self)

        def end(_: Any) -> None:
            gradients = me()
            if gradients is not None:
                gradients.is_alive = False

        self.model, self.is_alive = ref(model, end), True
        self.take_in(model)

    def take_in(self, module: torch.nn.Module) -> None:
        """Averages the gradients of a module of the model, and of modules put into it later."""
        _watch_what_is_put_in()
        _of_modules.update(dict.fromkeys(module.modules(), ref(self)))
        self.watch(module.parameters())

    @torch.compiler.disable
    def before_forward(self, module: torch.nn.Module, args: Any) -> None:
        """Notes the module whose forward the user called: the model, or a layer in it."""
        if self._outermost is None or module is self.model():
            self._outermost = module
            learns = torch.is_grad_enabled() and module.training
            evaluated.value = None if learns else module

    @torch.compiler.disable
    def after_forward(self, module: torch.nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Waits for the backward of a forward."""
        if module is not self._outermost:
            return
        not_compared, evaluated.value, self._outermost = evaluated.value, None, None
        if not self.is_alive or world_size() == 1:
            return
        results = [t for t in leaves_of(out) if isinstance(t, Tensor)]
        if not torch.is_grad_enabled():  # no backward comes that would tell of a lost rank
            for device in {t.device for t in results}:
                await_device(device, 'the end of a forward')
        inputs = [t for t in leaves_of((args, kwargs)) if isinstance(t, Tensor)]
        with torch._C.DisableTorchFunctionSubclass():
            outputs = [t for t in results if t.requires_grad]
            computed = [t for t in outputs if not t.is_leaf]
        words = ''  # on a cut graph convs compare more
        if any(isinstance(t, Rows) for t in inputs):
            if results and not_compared is not None and not is_hidden.value:  # by no conv
                values = common(not_compared.named_parameters()).values()
                name = f'parameters of {name_of(not_compared)}'
                current().met.note(name, [f'the checksum {digest(values)}'])
        else:
            words = f'a batch in {"training" if module.training else "evaluation"}'
        for output in computed:
            output.register_hook(_Entry(self, words))  # type: ignore[no-untyped-call]
        # A forward in a backward repeats one that was seen before, on stand-ins.
        if torch._C._current_graph_task_id() != -1:
            return
        if outputs and words:
            self._forwards.add(words)
            await_backward(self)

    def owner(self) -> object:
        """See :meth:`Averager.owner`: the model, which a checkpoint may hold last."""
        return self.model()

    def has(self, p: Tensor) -> bool:
        """See :meth:`Averager.has`; a program may have taken it out of the model."""
        model, task = self.model(), torch._C._current_graph_task_id()
        if self.known_in != task:
            self.known = set() if model is None else {*map(id, model.parameters())}
            self.known_in = task
        return id(p) in self.known

    def is_of_batches(self) -> bool:
        """See :meth:`Averager.is_of_batches`."""
        return bool(self._passed - {''})

    def parameters(self) -> list[Tensor]:
        """See :meth:`Averager.parameters`; with those that were put in later."""
        model = self.model()
        assert model is not None
        parameters = list(model.parameters())
        self.watch(parameters)
        return [
            p for p in parameters if not is_lazy(p) and (p.is_floating_point() or p.is_complex())
        ]

    def average(self, backward: Backward) -> list[Tensor]:
        """See :meth:`Averager.average`; of all parameters, as a rank may have gradients of some."""
        model = self.model()
        assert model is not None
        if self._forwards:
            has_come(self)
        if self.is_of_batches() or self._forwards:  # ranks may gather over several, or over none
            self._before = None
        statistics = RunningStatistics(model)
        vectors = statistics.packed()
        whole = self.average_of(backward, self._learning, vectors)
        for kind, vector in vectors.items():
            statistics.set(kind, vector)
        self._forwards.clear()
        self._passed.clear()
        self._num_steps += 1
        if self._num_steps % STEPS_BETWEEN_CHECKS == 0:
            check_same_values(model, f'at backward {self._num_steps}', PARTED)
        return whole

    def summed(self, vector: Tensor) -> Tensor:
        """See :meth:`Averager.summed`."""
        forwards = ' and '.join(sorted(self._passed - {''} or self._forwards))
        return all_reduce_sum(vector, f'{SUM} of {forwards}' if forwards else SUM, self._group)

    def parted(self, parameters: list[Tensor]) -> None:
        """See :meth:`Averager.parted`; names the parameter."""
        model = self.model()
        assert model is not None
        check_same_values(model, f'at backward {self._num_steps + 1}', PARTED)
        super().parted(parameters)

    def let_go(self) -> None:
        """Leaves the model to another averager."""
        self.model, self.is_alive = lambda: None, False
        for handle in self._handles:
            handle.remove()


_of_modules: WeakKeyDictionary[torch.nn.Module, ref[Gradients]] = WeakKeyDictionary()
"""The averager of every module of a model."""


@cache
def _watch_what_is_put_in() -> None:
    register_module_module_registration_hook(_put_in)
    register_module_parameter_registration_hook(_put_in)


def _put_in(into: torch.nn.Module, name: str, value: Any) -> None:
    """Notes a parameter or a module that is put into a module."""
    gradients = _of_modules.get(into, lambda: None)()
    if gradients is None or value is None or not gradients.is_alive:
        return
    if isinstance(value, torch.nn.Module):
        gradients.take_in(value)
    else:
        gradients.watch([value])


class _Entry:
    """The hook of a module's output, one of this library by its class: a backward comes there."""

    def __init__(self, gradients: Gradients, forward: str) -> None:
        self.gradients, self.forward, self._comm = ref(gradients), forward, current()

    def __call__(self, grad: Tensor) -> None:
        check_lives(self._comm)
        gradients = self.gradients()
        if gradients is not None and gradients.is_alive:
            gradients._passed.add(self.forward)
            gradients.enter()
