"""Layers that learn their widths at their first forward, such as ``GATConv((-1, -1), 64)``.

Each rank would draw values of its own for them. So the first forward runs once before, without
gradients and in evaluation, and leaves only the layers' values behind. Then rank 0 sends its values
to all, and the forward itself begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from pyg_sar.comm.vote import agree, check_equal
from pyg_sar.utils.dry_run import inert


class LazyLayers:
    """Gives a model's lazy parameters and buffers their shapes, at the first call of their module.

    A forward pre-hook of every module that holds one, as users call ``model.encode(...)`` as well;
    the outermost that is called is the first. A copy has no model and does nothing. `send` gives
    all ranks rank 0's values of some tensors (collective).
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        send: Callable[[list[Tensor]], None] = lambda tensors: None,
    ) -> None:
        self._send = send
        self._is_running = False
        self._waiting: dict[torch.nn.Module, dict[str, Tensor]] = {}
        for module in () if model is None else model.modules():
            tensors = (*module.named_parameters(), *module.named_buffers())
            waiting: dict[str, Tensor] = {name: t for name, t in tensors if is_lazy(t)}
            if waiting:
                # Before all hooks, but after one that gives it shapes itself.
                is_first = not hasattr(module, 'initialize_parameters')
                module.register_forward_pre_hook(self, with_kwargs=True, prepend=is_first)
                self._waiting[module] = waiting

    def __reduce__(self) -> Any:
        return LazyLayers, ()

    @torch.compiler.disable
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        """Runs the module once before its first forward (collective, as that is).

        Raises:
            ValueError: On all ranks, if the layers' shapes differ.
        """
        if self._is_running or module not in self._waiting:
            return
        if any(map(is_lazy, self._waiting[module].values())):
            self._is_running = True
            try:
                with torch.no_grad(), inert(module, (args, kwargs)), _in_evaluation(module):
                    module.forward(*args, **kwargs)
            finally:
                self._is_running = False
        ready = {name: t for name, t in self._waiting[module].items() if not is_lazy(t)}
        shapes = {name: tuple(t.shape) for name, t in ready.items()}
        check_equal('shapes of lazy layers', agree(shapes))
        # All tensors: a layer draws its bias anew as well.
        self._send([*module.parameters(), *module.buffers()])
        done = set(ready.values())
        for inner, waiting in list(self._waiting.items()):
            self._waiting[inner] = {name: t for name, t in waiting.items() if t not in done}
            if not self._waiting[inner]:
                del self._waiting[inner]


@contextmanager
def _in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training
