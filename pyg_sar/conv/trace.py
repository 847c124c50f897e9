"""Finds out what a message function does, by running it once on a few edges.

Paths are chosen by what a function computes, not by the conv's name. A trace notes the operations
on the messages (a copy or a weighting of x_j takes the linear path), the softmaxes over in-edges,
the learnable tensors the function reads by itself, and random numbers. It also refuses what block
by block would be silently wrong: other uses of the destination index, batch statistics inside a
message, and tensors with a history that did not come in as an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.utils import softmax as pyg_softmax

from pyg_sar.aggregate.program import Arguments
from pyg_sar.conv.binding import Binding
from pyg_sar.conv.functions import replaced

_NUM_SAMPLES = 3

_aten = torch.ops.aten


class UnsupportedMessageError(ValueError):
    """A message function cannot be computed block by block."""


@dataclass(frozen=True)
class Trace:
    """What a message function does.

    Attributes:
        num_softmax: Softmaxes over in-edges.
        edge_attributes: Attributes of the conv that it sets to a tensor with one row per edge.
        learnable: Leaf tensors it reads that are not among its arguments.
        uses_rng: Whether it draws random numbers.
        is_copy: Whether the messages are its only source tensor, unchanged.
        weight: The place among the edge tensors of the weight that multiplies the only source
            tensor, or None; with `is_copy` False and None the function is not linear.
    """

    num_softmax: int
    edge_attributes: tuple[str, ...]
    learnable: tuple[Tensor, ...]
    uses_rng: bool
    is_copy: bool
    weight: int | None

    @property
    def is_linear(self) -> bool:
        """Whether the messages are x_j, or a weight without gradient times x_j."""
        return self.is_copy or self.weight is not None


class _WatchedIndex(Tensor):
    """The destinations of the sampled edges; only a softmax may look at them."""

    _PROPERTIES: tuple[Any, ...] = (Tensor.shape, Tensor.device, Tensor.dtype)
    _ALLOWED = frozenset(
        {
            Tensor.numel,
            Tensor.size,
            Tensor.dim,
            Tensor.__len__,
            *(getter.__get__ for getter in _PROPERTIES),
        }
    )

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in cls._ALLOWED:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        name = getattr(func, '__name__', str(func))
        raise UnsupportedMessageError(
            f"it uses the destination index in '{name}', which would see one block's edges only"
        )


class _Recorder(TorchDispatchMode):
    """Notes the operations on one source tensor and the edge tensors."""

    _RESHAPES = (_aten.view.default, _aten.unsqueeze.default, _aten._unsafe_view.default)

    def __init__(self, rows: Tensor | None, edge: tuple[Tensor, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.weights = {id(t): (i, t) for i, t in enumerate(edge)}
        self.product: tuple[Tensor, int] | None = None
        self.is_pure = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in self._RESHAPES and id(args[0]) in self.weights:
            self.weights[id(out)] = (self.weights[id(args[0])][0], out)
        elif func is _aten.mul.Tensor and self.product is None:
            pairs = (args, args[::-1])
            place = next((self._place(w) for w, r in pairs if r is self.rows), None)
            if place is None:
                self.is_pure = False
            else:
                self.product = out, place
        else:
            self.is_pure = False
        return out

    def _place(self, weight: Any) -> int | None:
        """The edge tensor behind a ``[num_edges, 1]`` factor."""
        if not isinstance(weight, Tensor) or weight.shape != (_NUM_SAMPLES, 1):
            return None
        entry = self.weights.get(id(weight))
        return None if entry is None else entry[0]


def trace(binding: Binding, statistics_modules: tuple[type, ...]) -> Trace:
    """Runs a message function on a few sampled edges and notes what it does.

    Args:
        binding: The function with its arguments.
        statistics_modules: Types of modules whose result depends on all rows they are given.

    Raises:
        UnsupportedMessageError: If it cannot be computed block by block; the message says why.
    """
    conv = binding.conv
    samples, edge_index = _samples(binding)
    edge_index[1] = 0
    device = edge_index.device
    index = edge_index[1].as_subclass(_WatchedIndex)
    num_softmax = 0

    def softmax(logits: Tensor, dst: Tensor) -> Tensor:
        nonlocal num_softmax
        num_softmax += 1
        return torch.softmax(logits, 0)

    first_node = torch.ones(1, requires_grad=torch.is_grad_enabled()).exp().grad_fn
    states = _random_states(device)
    attributes = AttributeWatch(conv)
    inputs = binding.inputs(samples, edge_index, index, _NUM_SAMPLES)
    rows = _only_source(binding, inputs)
    recorder = _Recorder(rows, samples.edge)
    with _refusing(conv, statistics_modules), softmax_replaced(conv, softmax), recorder:
        out = getattr(conv, binding.function)(**inputs)
    changed = attributes.restore()
    uses_rng = any(
        not torch.equal(a, b) for a, b in zip(states, _random_states(device), strict=True)
    )
    _restore_random_states(states, device)

    edge_attributes = tuple(
        name
        for name, value in changed.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == _NUM_SAMPLES
    )
    outputs = [out, *(changed[name] for name in edge_attributes)]
    learnable = _learnable(outputs, samples, first_node)
    is_pure = recorder.is_pure and not edge_attributes and rows is not None
    return Trace(
        num_softmax=num_softmax,
        edge_attributes=edge_attributes,
        learnable=learnable,
        uses_rng=uses_rng,
        is_copy=is_pure and out is rows and recorder.product is None,
        weight=_weight_place(binding, recorder, out) if is_pure else None,
    )


def check_rows_are_independent(
    binding: Binding, uses_rng: bool, *, sees_all_in_edges: bool
) -> None:
    """Checks that a message depends on its own edge only, by leaving one edge out.

    Args:
        binding: The function with its arguments.
        uses_rng: Whether the function draws random numbers: then nothing can be compared.
        sees_all_in_edges: Whether it may look at the other edges into its destination.

    Raises:
        UnsupportedMessageError: If the messages of other edges change.
    """
    if uses_rng:
        return
    conv = binding.conv
    samples, edge_index = _samples(binding)
    if not sees_all_in_edges:
        edge_index[1] = 0
    fewer = replace(samples, edge=tuple(t[1:] for t in samples.edge))
    outs = []
    with torch.no_grad(), _evaluating(conv):
        for arguments, edges in ((samples, edge_index), (fewer, edge_index[:, 1:])):
            state = _random_states(edges.device)
            attributes = AttributeWatch(conv)
            try:
                if sees_all_in_edges:
                    out = binding.call(arguments, edges, edges[1], _NUM_SAMPLES)
                else:
                    with softmax_replaced(conv, lambda logits, _: logits.sigmoid()):
                        index = block_index(edges[1])
                        out = binding.call(arguments, edges, index, _NUM_SAMPLES)
            finally:
                attributes.restore()
                _restore_random_states(state, edges.device)
            outs.append(out)
    dim = conv.node_dim if binding.function == 'message' else 0
    expected = outs[0].narrow(dim, 1, _NUM_SAMPLES - 1)
    if outs[1].shape != expected.shape or not torch.allclose(
        outs[1].double(), expected.double(), rtol=1e-3, atol=1e-6, equal_nan=True
    ):
        raise UnsupportedMessageError('a message depends on the other edges it is computed with')


@contextmanager
def _evaluating(conv: torch.nn.Module) -> Iterator[None]:
    """While it lasts, global norms use their running statistics and leave them alone."""
    norms = [m for m in conv.modules() if getattr(m, 'is_global', False) and m.training]
    for module in norms:
        module.training = False
    try:
        yield
    finally:
        for module in norms:
            module.training = True


@contextmanager
def softmax_replaced(
    conv: torch.nn.Module, softmax: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[None]:
    """While it lasts, PyG's softmax over in-edges is `softmax` wherever `conv` sees it."""

    def replacement(
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Tensor:
        if index is None or not isinstance(index, (_WatchedIndex, _BlockIndex)):
            raise UnsupportedMessageError('it computes a softmax over other groups than in-edges')
        if dim not in (0, -src.dim()):
            raise UnsupportedMessageError(f'it computes a softmax in dimension {dim}')
        return softmax(src, index.as_subclass(Tensor))

    with replaced(conv, {pyg_softmax: replacement}):
        yield


class _BlockIndex(Tensor):
    """The destinations of a block's edges, as a message function receives them."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def block_index(dst: Tensor) -> Tensor:
    """The ``index`` argument of a block: ``[num_edges]``, known to the replaced softmax."""
    return dst.as_subclass(_BlockIndex)


class AttributeWatch:
    """Undoes what a message function sets on its conv."""

    def __init__(self, conv: torch.nn.Module) -> None:
        self.conv = conv
        self.before = dict(vars(conv))

    def restore(self) -> dict[str, Any]:
        """Brings the attributes back and returns the changed ones."""
        now = vars(self.conv)
        missing = object()
        changed = {k: v for k, v in now.items() if self.before.get(k, missing) is not v}
        for name in changed:
            if name in self.before:
                now[name] = self.before[name]
            else:
                del now[name]
        return changed


def _samples(binding: Binding) -> tuple[Arguments, Tensor]:
    """Arguments of a few edges, each from a source and into a destination of its own."""
    arguments = binding.arguments
    samples = Arguments(
        src=tuple(_sample(t) for t in arguments.src),
        dst=tuple(_sample(t) for t in arguments.dst),
        edge=tuple(_sample(t) for t in arguments.edge),
        whole=tuple(t.detach().requires_grad_(t.requires_grad) for t in arguments.whole),
    )
    device = next((t.device for t in samples), torch.device('cpu'))
    places = torch.arange(_NUM_SAMPLES, device=device)
    return samples, torch.stack([places, places])


def _sample(values: Tensor) -> Tensor:
    """Three rows: the first ones, or made up where a rank has fewer."""
    rows = values.detach()[:_NUM_SAMPLES]
    missing = _NUM_SAMPLES - rows.size(0)
    if missing:
        fill = 1 if values.is_floating_point() else 0
        rows = torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), fill)])
    else:
        rows = rows.clone()
    return rows.requires_grad_(values.requires_grad)


def _only_source(binding: Binding, inputs: dict[str, Any]) -> Tensor | None:
    """x_j, if it is the only node tensor the function reads and a plain matrix."""
    nodes = [slot for slot in binding.slots if slot.role in ('src', 'dst')]
    if len(nodes) != 1 or nodes[0].role != 'src':
        return None
    rows: Tensor = inputs[nodes[0].name]
    if rows.dim() != 2 or rows.size(0) != _NUM_SAMPLES or not rows.is_floating_point():
        return None
    return rows


def _weight_place(binding: Binding, recorder: _Recorder, out: Tensor) -> int | None:
    if recorder.product is None or recorder.product[0] is not out:
        return None
    place = recorder.product[1]
    weight = binding.arguments.edge[place]
    if weight.requires_grad or weight.dtype != out.dtype or recorder.rows is None:
        return None
    return place if recorder.rows.dtype == out.dtype else None


def _learnable(outputs: list[Tensor], samples: Arguments, first_node: Any) -> tuple[Tensor, ...]:
    """Leaves of the outputs' history that are not arguments."""
    known = {id(t) for t in samples}
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    for output in outputs:
        if output.requires_grad and output.grad_fn is None and id(output) not in known:
            found[id(output)] = output
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, 'variable', None)
        if variable is not None:
            if id(variable) not in known:
                found[id(variable)] = variable
            continue
        if node._sequence_nr() < first_node._sequence_nr():
            raise UnsupportedMessageError(
                'it reads a tensor that forward computed and kept on the conv; '
                'pass that tensor to propagate instead'
            )
        todo += [parent for parent, _ in node.next_functions if parent is not None]
    return tuple(found.values())


@contextmanager
def _refusing(conv: torch.nn.Module, types: tuple[type, ...]) -> Iterator[None]:
    """While it lasts, a module that takes statistics over its rows refuses to run."""

    def refuse(module: torch.nn.Module, _: Any) -> None:
        if module.training or getattr(module, 'running_mean', None) is None:
            raise UnsupportedMessageError(
                f'{type(module).__name__} runs inside it and would see one block of edges only'
            )

    handles = [m.register_forward_pre_hook(refuse) for m in conv.modules() if isinstance(m, types)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _random_states(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == 'cuda':
        states.append(torch.cuda.get_rng_state(device))
    return states


def _restore_random_states(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == 'cuda':
        torch.cuda.set_rng_state(states[1], device)
