"""Runs a message function on a few edges without leaving a trace on the conv."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.program import Arguments
from pyg_sar.conv.binding import Binding

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


def samples_of(binding: Binding) -> tuple[Arguments, Tensor]:
    """Arguments of a few edges, each from a source and into a destination of its own."""
    arguments = binding.arguments
    samples = Arguments(
        src=tuple(_sample(t) for t in arguments.src),
        dst=tuple(_sample(t) for t in arguments.dst),
        edge=tuple(_sample(t) for t in arguments.edge),
        whole=tuple(t.detach().requires_grad_(t.requires_grad) for t in arguments.whole),
    )
    device = next((t.device for t in samples), torch.device('cpu'))
    places = torch.arange(NUM_SAMPLES, device=device)
    return samples, torch.stack([places, places])


def _sample(values: Tensor) -> Tensor:
    """Three rows: the first ones, or made up where a rank has fewer."""
    rows = values.detach()[:NUM_SAMPLES]
    missing = NUM_SAMPLES - rows.size(0)
    if missing:
        fill = 1 if values.is_floating_point() else 0
        rows = torch.cat([rows, rows.new_full((missing, *rows.shape[1:]), fill)])
    else:
        rows = rows.clone()
    return rows.requires_grad_(values.requires_grad)


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
