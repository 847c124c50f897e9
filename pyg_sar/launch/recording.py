"""Records which layer of a model is running, and its seconds, rows and memory.

Hooks of torch on a layer mark the begin and the end of its forward. Its backward has no such marks:
autograd runs its steps in an order of its own. So after a forward, its steps are collected from its
outputs back to its inputs, and each is timed by itself. A layer's backward is the sum of its steps,
linear layers included. The hooks on layers are removed when the profile ends; those on steps stay
with the graph, and do nothing then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node

from pyg_sar.comm.ranks import rank, takes_turns, world_size
from pyg_sar.launch.process_memory import HighWater
from pyg_sar.launch.records import LayerProfile, Summary
from pyg_sar.nn.sar_conv import SARConv
from pyg_sar.utils import hook
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.meter import Counts, Meter
from pyg_sar.utils.nested import leaves

T = TypeVar('T', bound='Recording')


class Recording(Meter):
    """Records one model in a ``with`` block; `recorded` is set when it ends."""

    recorded: Summary | None = None

    def __init__(self, model: torch.nn.Module) -> None:
        self._outside = Counts()
        super().__init__(self._outside)
        self._model = model
        convs = ((n, m) for n, m in model.named_modules() if isinstance(m, SARConv))
        self._convs = {conv: path for path, conv in convs if not conv._sar.is_inside}
        if not self._convs:
            name = type(model).__name__
            raise ValueError(f'expected a model that is wrapped (got {name} without any SARConv)')
        self._layers = [LayerProfile(path, name_of(conv)) for conv, path in self._convs.items()]
        tensors = [*model.parameters(), *model.buffers()]
        self._device = tensors[0].device if tensors else torch.device('cpu')
        self._memory = HighWater(self._device)
        self._is_on = False
        self._ends: ExitStack | None = None

    def __enter__(self: T) -> T:
        if self._ends is not None:
            raise ValueError('expected a new profile: this one was entered before')
        self._memory.reset()
        self._start_bytes = self._memory.peak()
        with ExitStack() as stack:
            for handle in self._hooks():
                stack.callback(handle.remove)
            hook.add(self)
            stack.callback(hook.remove, self)
            self._ends = stack.pop_all()
        self._is_on = True
        self._start = self.here.mark = self.clock()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._ends is not None
        with self._ends:
            self._is_on = False
            self.recorded = self._summarized(self.clock() - self._start)

    def _summarized(self, seconds: float) -> Summary:
        for conv, layer in zip(self._convs, self._layers, strict=True):
            layer.paths = tuple(conv.chosen_paths())
            layer.mode = conv.sar_options.mode
        passes = [p for layer in self._layers for p in (layer.forward, layer.backward)]
        spent = sum(p.waiting + p.computing for p in passes) + self._outside.waiting
        self._outside.computing = max(seconds - spent, 0.0)  # of all threads
        return Summary(
            rank=rank(),
            world_size=world_size(),
            seconds=seconds,
            layers=self._layers,
            outside=self._outside,
            start_bytes=self._start_bytes,
            memory=self._memory.name,
        )

    def clock(self) -> float:
        """Seconds; on a GPU after its work is done."""
        if self._device.type == 'cuda':
            torch.cuda.synchronize(self._device)
        return super().clock()

    def _hooks(self) -> Iterator[Any]:
        # Functions, not methods: a deep copy of the model would copy the profile with a method.
        def drop(*_: Any) -> None:
            del self.here.passes[1:]  # they remain after a backward that failed

        yield self._model.register_forward_pre_hook(drop)
        for conv, layer in zip(self._convs, self._layers, strict=True):
            yield from self._hooks_of(conv, layer)

    def _hooks_of(self, conv: SARConv, layer: LayerProfile) -> Iterator[Any]:
        inputs: list[list[Any]] = []

        def before(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            if module is conv:  # and no copy of it
                inputs.append([t.grad_fn for t in _tensors((args, kwargs))])
                layer.forward.calls += 1
                self.begin(layer.path, layer.forward)

        def after(module: torch.nn.Module, args: Any, out: Any) -> None:
            if module is conv:
                self.end()
                roots = [t.grad_fn for t in _tensors(out) if t.grad_fn is not None]
                self._follow(_steps(roots, inputs.pop()), layer)

        yield conv.register_forward_pre_hook(before, with_kwargs=True)
        yield conv.register_forward_hook(after, prepend=True, always_call=True)

    def _follow(self, steps: list[Node], layer: LayerProfile) -> None:
        is_new = True

        def before(grads: Any) -> None:
            nonlocal is_new
            if self._is_on:
                layer.backward.calls += is_new
                is_new = False
                self.begin(layer.path, layer.backward)

        def after(grad_inputs: Any, grad_outputs: Any) -> None:
            if self._is_on and len(self.here.passes) > 1:
                self.end()

        for step in steps:
            step.register_prehook(before)
            step.register_hook(after)

    def begin(self, name: str, counts: Counts) -> None:
        """Notes the peak and begins another."""
        self._note_peak()
        super().begin(name, counts)
        self._memory.reset()

    def end(self) -> tuple[str, Counts]:
        """The innermost pass ends."""
        self._note_peak()
        return super().end()

    def enter_operation(self, operation: str, peer: int | None) -> None:
        """Notes the peak before the turns of other ranks, which may reset the mark."""
        super().enter_operation(operation, peer)
        if takes_turns():
            self._note_peak()

    def leave_operation(self) -> None:
        """Forgets the memory of other ranks' turns."""
        super().leave_operation()
        if takes_turns():
            self._memory.reset()

    def _note_peak(self) -> None:
        """Raises the peak of all passes under way to the peak since the last mark."""
        passes = self.here.passes[1:]
        peak = self._memory.peak() if passes else None
        if peak is not None:
            for _, counts in passes:
                counts.peak_bytes = max(counts.peak_bytes or 0, peak)


def _tensors(values: Any) -> list[Tensor]:
    return [t for t in leaves(values) if isinstance(t, Tensor)]


def _steps(roots: list[Node], inputs: list[Any]) -> list[Node]:
    """The steps of autograd from `roots` back to the `inputs`, which are left out.

    Leaves are left out, too: hooks on gradients of parameters are not the layer's work.
    """
    ends = {id(node) for node in inputs if node is not None}
    steps: dict[int, Node] = {}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if id(node) in ends or id(node) in steps or hasattr(node, 'variable'):
            continue
        steps[id(node)] = node
        waiting.extend(next_node for next_node, _ in node.next_functions if next_node is not None)
    return list(steps.values())
