"""Progress over layers and parts, told by the ranks that take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.nn import Module
from torch_geometric.nn import MessagePassing

from pyg_sar.commands.command_line import progress_bar
from pyg_sar.monitor import hook


@contextmanager
def shown(model: Module, num_parts: int, *, quiet: bool) -> Iterator[None]:
    """A bar with a step for each layer of each part, while parts go through a model."""
    num_layers = sum(isinstance(module, MessagePassing) for module in model.modules())
    total = num_layers * num_parts
    with progress_bar('predicting', total, quiet=quiet or not total) as bar:
        watcher = _Passes(bar.update, total)
        hook.add(watcher)
        try:
            yield
        finally:
            hook.remove(watcher)


class _Passes(hook.Watcher):
    hears_all = True

    def __init__(self, update: Callable[[], object], total: int) -> None:
        self._update, self._left = update, total

    def enter_layer(self, layer: str, phase: str) -> None:
        if layer and self._left:  # a conv may run more than once
            self._left -= 1
            self._update()
