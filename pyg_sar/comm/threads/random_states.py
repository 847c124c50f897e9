"""The states of torch's generators, for threads of a program that train at the same time.

torch holds the lock of a generator and that of Python while it makes the tensor of a state. If
garbage is collected then, another thread may get Python's lock, and wait for the generator with it:
neither goes on. So one thread at a time asks for a state here, or sets it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

_one = threading.Lock()


def random_states(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator, and that of a GPU's if `device` is one."""
    with _one:
        states = [torch.get_rng_state()]
        if device.type == 'cuda':
            states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    """Sets what :func:`random_states` has given of a device."""
    with _one:
        torch.set_rng_state(states[0])
        if device.type == 'cuda':
            torch.cuda.set_rng_state(states[1], device)


@contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """At the end all states are what they were at the beginning."""
    before = random_states(device)
    try:
        yield
    finally:
        set_random_states(before, device)
