"""Runs a message function on a few edges and leaves the conv as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.aggregate.program import Arguments
from pyg_sar.comm.threads.random_states import random_states, set_random_states
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.message.intercept import MessageError
from pyg_sar.ground.class_swap import name_of
from pyg_sar.ground.nested import PLAIN, leaves

NUM_SAMPLES = 3


class Undone:
    """While it lasts a function may set attributes of its conv and draw random numbers.

    At the end the conv has the attributes that it had, its lists, dicts and buffers what they had,
    and the generator its state.

    Args:
        conv: The conv.
        device: Where random numbers may be drawn; None leaves them alone.

    Attributes:
        changed: The attributes that were set, with their values.
        refilled: The names of lists, dicts and buffers that were changed in place.
        uses_rng: Whether random numbers were drawn.
    """

    def __init__(self, conv: torch.nn.Module, device: torch.device | None = None) -> None:
        self.conv = conv
        self.device = device
        self.changed: dict[str, Any] = {}
        self.refilled: list[str] = []
        self.uses_rng = False

    def __enter__(self) -> Undone:
        self._before = dict(vars(self.conv))
        self._held = _held(self.conv)
        self._states = [] if self.device is None else random_states(self.device)
        return self

    def __exit__(self, *error: object) -> None:
        self.changed = undo(self.conv, self._before)
        self.refilled = [name for name, place, held in self._held if _is_refilled(place, held)]
        if self.device is None:
            return
        pairs = zip(self._states, random_states(self.device), strict=True)
        self.uses_rng = any(not torch.equal(before, after) for before, after in pairs)
        if self.uses_rng:
            set_random_states(self._states, self.device)

    def check_edges_alone(self) -> None:
        """Raises a MessageError if something of all edges is kept: a mean, a list of numbers."""
        tensors = {k for k, value in self.changed.items() if isinstance(value, Tensor)}
        kept = [*(tensors - {*self.edge_attributes}), *self.refilled]
        if kept:
            raise MessageError(f"keeps '{kept[0]}', which has no row for every edge")

    @property
    def edge_attributes(self) -> tuple[str, ...]:
        """Which of the changed attributes have one row per sampled edge."""
        return tuple(
            name
            for name, value in self.changed.items()
            if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == NUM_SAMPLES
        )

    @property
    def numbers(self) -> dict[str, Any]:
        """Which of the changed attributes are plain numbers or words, with their values."""
        return {k: v for k, v in self.changed.items() if isinstance(v, PLAIN)}

    def edge_rows(self, names: tuple[str, ...], num_edges: int) -> tuple[Tensor, ...]:
        """What attributes were set to, with one row per edge."""
        return edge_rows(self.conv, self.changed, names, num_edges)


def states_of(values: Mapping[str, Any]) -> dict[str, tuple[Tensor, object]]:
    """Tensors among the inputs of a function, with what tells whether they are written to."""
    tensors = {name: value for name, value in values.items() if type(value) is Tensor}
    return {n: (t, t.clone() if t.is_inference() else t._version) for n, t in tensors.items()}


def written_among(binding: Binding, states: dict[str, tuple[Tensor, object]]) -> tuple[str, ...]:
    """The inputs that were written to: rows of nodes, which the next block reads anew.

    Raises a MessageError for tensors of edges, a ValueError for those that are read as they are: a
    function that runs in several blocks, and again in backward, would write to them every time.
    """
    roles = {slot.name: slot.role for slot in binding.slots}
    found = []
    for name, (tensor, before) in states.items():
        if isinstance(before, Tensor):
            is_same = torch.equal(tensor, before)
        else:
            is_same = tensor._version == before
        if is_same or name not in roles:
            continue
        if roles[name] == 'whole':
            raise ValueError(
                f"'{binding.function}' of {name_of(binding.conv)} changes '{name}' in place, and "
                f'would at every block of edges: change {name}.clone()'
            )
        if roles[name] == 'edge':
            raise MessageError(f"it changes '{name}' in place, a tensor of edges")
        found.append(name)
    return tuple(found)


def undo(conv: torch.nn.Module, before: dict[str, Any]) -> dict[str, Any]:
    """Gives a conv the attributes that it had before; returns those that were set since."""
    now, missing = vars(conv), object()
    changed = {k: v for k, v in now.items() if before.get(k, missing) is not v}
    for name in changed:
        if name in before:
            now[name] = before[name]
        else:
            del now[name]
    return changed


_OF_ALL = frozenset(vars(torch.nn.Module()))


def _held(conv: torch.nn.Module) -> list[tuple[str, Any, Any]]:
    """Lists, dicts and buffers of a conv with copies of them."""
    own = [(k, v) for k, v in vars(conv).items() if type(v) in (list, dict) and k not in _OF_ALL]
    buffers = list(conv.named_buffers(recurse=False))
    return [
        *((name, place, place.copy()) for name, place in own),
        *((name, tensor, (tensor._version, tensor.clone())) for name, tensor in buffers),
    ]


def _is_refilled(place: Any, held: Any) -> bool:
    """Whether a list, dict or buffer has changed; it gets back what it had."""
    if isinstance(place, Tensor):
        is_changed = bool(place._version != held[0])
        if is_changed:
            with torch.no_grad():
                place.copy_(held[1])
        return is_changed
    now, before = (leaves(each) for each in (place, held))
    is_changed = len(now) != len(before) or any(
        a is not b for a, b in zip(now, before, strict=True)
    )
    if is_changed and isinstance(place, list):
        place[:] = held
    elif is_changed:
        place.clear()
        place.update(held)
    return is_changed


def edge_rows(
    conv: torch.nn.Module, changed: dict[str, Any], names: tuple[str, ...], num_edges: int
) -> tuple[Tensor, ...]:
    """The attributes of these names that a conv has set to one row per edge."""
    for name in names:
        value = changed.get(name)
        if not isinstance(value, Tensor) or value.size(0) != num_edges:
            raise ValueError(
                f"expected {name_of(conv)} to set '{name}' to one row per edge in every block"
            )
    return tuple(changed[name] for name in names)


def samples_of(binding: Binding) -> tuple[Arguments, Tensor]:
    """Arguments of a few edges, each from a source and into a destination of its own."""
    arguments = binding.arguments
    samples = Arguments(
        src=tuple(map(_sample, arguments.src)),
        dst=tuple(map(_sample, arguments.dst)),
        edge=tuple(map(_sample, arguments.edge)),
        whole=tuple(t.detach().requires_grad_(t.requires_grad) for t in arguments.whole),
    )
    places = torch.arange(NUM_SAMPLES, device=samples.device)
    return samples, torch.stack([places, places])


def _sample(values: Tensor) -> Tensor:
    """Three rows: the first ones, or made up where a rank has fewer."""
    rows = values.detach()[:NUM_SAMPLES]
    missing = NUM_SAMPLES - rows.size(0)
    rows = torch.cat([rows, made_up_row(rows).expand(missing, *rows.shape[1:])])
    return rows.requires_grad_(values.requires_grad)


def made_up_row(values: Tensor) -> Tensor:
    """A row as `values` might have it: ones, or index zero."""
    return values.new_full((1, *values.shape[1:]), 1 if values.is_floating_point() else 0)


NUM_MADE_UP = 9
"""More than a sampled destination has: what depends on the largest in-degree shows."""


def with_other_values(arguments: Arguments) -> Arguments:
    """The rows with other floating values; values between 0 and 1 stay between 0 and 1."""

    def other(values: Tensor) -> Tensor:
        return values.detach() * 0.75 if values.is_floating_point() else values

    src, dst, edge = (tuple(map(other, g)) for g in (arguments.src, arguments.dst, arguments.edge))
    return Arguments(src, dst, edge, arguments.whole)


def with_made_up_edges(arguments: Arguments, edge_index: Tensor) -> tuple[Arguments, Tensor]:
    """The edges, after some between made-up nodes that end in a new first destination."""
    num_src = next((t.size(0) for t in arguments.src), 0)
    first = edge_index.new_tensor([[num_src], [0]]).expand(2, NUM_MADE_UP)
    shifted = torch.stack([edge_index[0], edge_index[1] + 1])
    more = replace(
        arguments,
        src=tuple(torch.cat([t, made_up_row(t)]) for t in arguments.src),
        dst=tuple(torch.cat([made_up_row(t), t]) for t in arguments.dst),
        edge=tuple(torch.cat([*[made_up_row(t)] * NUM_MADE_UP, t]) for t in arguments.edge),
    )
    return more, torch.cat([first, shifted], dim=1)


@contextmanager
def not_saved() -> Iterator[None]:
    """While it lasts, hooks on what autograd saves see nothing.

    A checkpoint compares what a forward saves with what the same forward saves in backward, when
    the ranks have agreed on the call already.
    """
    # A node that keeps its own result, with its history, would never be freed; see recompute.
    with saved_tensors_hooks(_detached, lambda tensor: tensor):
        yield


def _detached(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # they count operations
        return tensor.detach()
