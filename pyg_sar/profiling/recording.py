"""Notes which layer of a model is running, and what happens meanwhile.

Forward passes begin and end with hooks of torch on the layers. Backward has no such moments: the
steps of autograd run in an order of their own. So when a forward ends, the steps that it has made
are looked up, from its outputs back to its inputs, and each is timed by itself: a layer's backward
is the sum of its steps, linear layers included. All hooks go when the profile ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._pytree import tree_leaves

from pyg_sar.conv.names import name_of
from pyg_sar.conv.sar_conv import SARConv
from pyg_sar.monitor import hook
from pyg_sar.monitor.hook import Transfer, Watcher
from pyg_sar.profiling.memory import high_water
from pyg_sar.profiling.records import LayerProfile, PassProfile


class _Frame:
    """A pass of a layer under way; without a layer what is outside of all."""

    __slots__ = ('inputs', 'layer', 'passes')

    def __init__(self, layer: LayerProfile | None, passes: PassProfile) -> None:
        self.layer, self.passes = layer, passes
        self.inputs: list[Any] = []


class _Here(threading.local):
    """The passes under way in a thread, and until when its time has been told to them."""

    def __init__(self, outside: PassProfile) -> None:
        self.frames = [_Frame(None, outside)]
        self.mark = 0.0


class Recording(Watcher):
    """Records one model.

    Args:
        model: With SARConvs inside.

    Attributes:
        layers: What each SARConv did, in the order of the model.
        outside: What happened outside of them; its `computing` is not counted here.
        memory: Measures the high-water marks.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._convs = {m: n for n, m in model.named_modules() if isinstance(m, SARConv)}
        self.layers = [LayerProfile(n, name_of(m)) for m, n in self._convs.items()]
        self.outside = PassProfile()
        tensors = [*model.parameters(), *model.buffers()]
        self.device = tensors[0].device if tensors else torch.device('cpu')
        self.memory = high_water(self.device)
        self._here = _Here(self.outside)
        self._is_on = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Records while it lasts."""
        with ExitStack() as stack:
            stack.callback(self.memory.close)
            for handle in self._hooks():
                stack.callback(handle.remove)
            hook.add(self)
            stack.callback(hook.remove, self)
            self._is_on = True
            stack.callback(self._end)
            yield

    def _end(self) -> None:
        self._is_on = False
        for conv, layer in zip(self._convs, self.layers, strict=True):
            layer.paths = tuple(conv.chosen_paths())
            modes = {str(chosen.mode) for chosen in conv.chosen_modes()}
            layer.mode = '+'.join(sorted(modes)) or conv.sar_options.mode

    def clock(self) -> float:
        """Seconds; on a GPU when all that was started is done."""
        if self.device.type == 'cuda':
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def _hooks(self) -> Iterator[Any]:
        # Functions, not methods: a deep copy of the model would copy the profile with a method.
        def drop(*_: Any) -> None:
            del self._here.frames[1:]  # of a backward that failed

        yield self._model.register_forward_pre_hook(drop)
        for conv, layer in zip(self._convs, self.layers, strict=True):
            yield from self._hooks_of(conv, layer)

    def _hooks_of(self, conv: SARConv, layer: LayerProfile) -> Iterator[Any]:
        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if module is conv:  # and no copy of it
                frame = _Frame(layer, layer.forward)
                frame.inputs = [t.grad_fn for t in _tensors((args, kwargs))]
                layer.forward.calls += 1
                self._enter(frame)

        def after(module: torch.nn.Module, args: Any, out: Any) -> None:
            if module is not conv:
                return
            inputs = self._here.frames[-1].inputs
            self._leave()
            roots = [t.grad_fn for t in _tensors(out) if t.grad_fn is not None]
            if roots:
                self._follow(_steps(roots, inputs), layer)

        yield conv.register_forward_pre_hook(before, with_kwargs=True)
        yield conv.register_forward_hook(after, prepend=True, always_call=True)

    def _follow(self, steps: list[Node], layer: LayerProfile) -> None:
        """Has the steps of a layer's backward timed."""
        is_new = True

        def before(grads: Any) -> None:
            nonlocal is_new
            if self._is_on:
                layer.backward.calls += is_new
                is_new = False
                self._enter(_Frame(layer, layer.backward))

        def after(grad_inputs: Any, grad_outputs: Any) -> None:
            if self._is_on:
                self._leave()

        for step in steps:
            step.register_prehook(before)
            step.register_hook(after)

    def _enter(self, frame: _Frame) -> None:
        self._note_peak()
        self._count()
        self._here.frames.append(frame)
        self.memory.reset()

    def _leave(self) -> None:
        self._note_peak()
        self._count()
        if len(self._here.frames) > 1:
            self._here.frames.pop()

    def _note_peak(self) -> None:
        """Every pass under way has seen at least what is the peak since the last one began."""
        frames = [frame for frame in self._here.frames if frame.layer is not None]
        peak = self.memory.peak() if frames else None
        if peak is not None:
            for frame in frames:
                assert frame.layer is not None
                frame.layer.peak_bytes = max(frame.layer.peak_bytes or 0, peak)

    def _count(self, *, waited: bool = False) -> None:
        """Tells the time since the last call to the innermost pass."""
        here, now = self._here, self.clock()
        passes = here.frames[-1].passes
        if waited:
            passes.waiting += now - here.mark
        else:
            passes.computing += now - here.mark
        here.mark = now

    def enter_operation(self, operation: str, peer: int | None, is_wait: bool) -> None:
        """What was until now is computing."""
        self._count()

    def leave_operation(self) -> None:
        """What was until now is waiting."""
        self._count(waited=True)

    def moved(self, transfer: Transfer) -> None:
        """Counts rows."""
        passes = self._here.frames[-1].passes
        passes.rows_received += transfer.rows_received
        passes.rows_sent += transfer.rows_sent
        passes.bytes_received += transfer.bytes_received
        passes.bytes_sent += transfer.bytes_sent


def _tensors(values: Any) -> list[Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, Tensor)]


def _steps(roots: list[Node], inputs: list[Any]) -> list[Node]:
    """The steps of autograd from `roots` back to those that made the inputs, without these.

    Without the leaves, too: what hooks on gradients of parameters do is not the layer's.
    """
    ends = {id(node) for node in inputs if node is not None}
    found: dict[int, Node] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) in ends or id(node) in found or hasattr(node, 'variable'):
            continue
        found[id(node)] = node
        waiting.extend(next_node for next_node, _ in node.next_functions if next_node is not None)
    return list(found.values())
