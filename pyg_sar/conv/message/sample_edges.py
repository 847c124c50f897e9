"""Runs a message function on a few edges and leaves the conv as it was."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _disable_current_modes

from pyg_sar.aggregate.program import Arguments
from pyg_sar.conv.message.arguments import Binding
from pyg_sar.conv.names import name_of

NUM_SAMPLES = 3


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


def edge_attributes_of(changed: dict[str, Any]) -> tuple[str, ...]:
    """Which of the changed attributes have one row per sampled edge."""
    return tuple(
        name
        for name, value in changed.items()
        if isinstance(value, Tensor) and value.dim() > 0 and value.size(0) == NUM_SAMPLES
    )


def numbers_of(changed: dict[str, Any]) -> dict[str, Any]:
    """Which of the changed attributes are plain numbers or words, with their values."""
    return {k: v for k, v in changed.items() if isinstance(v, (bool, int, float, str, type(None)))}


def edge_rows(
    conv: torch.nn.Module, changed: dict[str, Any], name: str, edge_index: Tensor
) -> Tensor:
    """What a message function set an attribute to, with one row per edge.

    Raises:
        ValueError: If it is something else than for the samples.
    """
    value = changed.get(name)
    if not isinstance(value, Tensor) or value.size(0) != edge_index.size(1):
        raise ValueError(
            f"expected {name_of(conv)} to set '{name}' to one row per edge in every block"
        )
    return value


def samples_of(binding: Binding) -> tuple[Arguments, Tensor]:
    """Arguments of a few edges, each from a source and into a destination of its own."""
    arguments = binding.arguments
    samples = Arguments(
        src=tuple(_sample(t) for t in arguments.src),
        dst=tuple(_sample(t) for t in arguments.dst),
        edge=tuple(_sample(t) for t in arguments.edge),
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
    """The same rows with other floating values; what lay between 0 and 1 still does."""

    def other(values: Tensor) -> Tensor:
        return values.detach() * 0.75 if values.is_floating_point() else values

    return replace(
        arguments,
        src=tuple(other(t) for t in arguments.src),
        dst=tuple(other(t) for t in arguments.dst),
        edge=tuple(other(t) for t in arguments.edge),
    )


def with_made_up_edges(arguments: Arguments, edge_index: Tensor) -> tuple[Arguments, Tensor]:
    """The same edges after some between made-up nodes, whose destination is the first."""
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


def random_states(device: torch.device) -> list[Tensor]:
    """The states of the random number generators a function may draw from."""
    states = [torch.get_rng_state()]
    if device.type == 'cuda':
        states.append(torch.cuda.get_rng_state(device))
    return states


def restore_random_states(states: list[Tensor], device: torch.device) -> None:
    """Brings back what :func:`random_states` gave."""
    torch.set_rng_state(states[0])
    if device.type == 'cuda':
        torch.cuda.set_rng_state(states[1], device)


def not_saved() -> AbstractContextManager[None]:
    """While it lasts, hooks on what autograd saves see nothing.

    A checkpoint compares what a forward saves with what the same forward saves in backward, when
    the ranks have agreed on the call already.
    """
    # A node that keeps its own result, with its history, would never be freed; see recompute.
    hooks: AbstractContextManager[None] = saved_tensors_hooks(_detached, _same)
    return hooks


def _detached(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # they count operations
        return tensor.detach()


def _same(tensor: Tensor) -> Tensor:
    return tensor
