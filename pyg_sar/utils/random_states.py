"""The states of random generators, for threads of a program that train at the same time.

torch holds the lock of a generator and that of Python while it makes the tensor of a state. If
garbage is collected then, another thread may get Python's lock, and wait for the generator with it:
neither goes on. So one thread at a time asks for a state here, or sets it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

_one = threading.Lock()
_CPU = torch.device('cpu')


def random_states(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator, and that of a GPU's if `device` is one."""
    with _one:
        states = [torch.get_rng_state()]
        if device.type == 'cuda':
            states.append(torch.cuda.get_rng_state(device))
    return states


def set_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    """Sets the states that :func:`random_states` returned for a device."""
    with _one:
        torch.set_rng_state(states[0])
        if device.type == 'cuda':
            torch.cuda.set_rng_state(states[1], device)


def seed_random_states(seed: int, device: torch.device) -> None:
    """Seeds the generator of the CPU, and that of a GPU if `device` is one."""
    torch.default_generator.manual_seed(seed)
    if device.type == 'cuda':
        torch.cuda.default_generators[device.index].manual_seed(seed)


@contextmanager
def random_states_kept(device: torch.device) -> Iterator[None]:
    """Sets all states back at the end of its ``with``."""
    before = random_states(device)
    try:
        yield
    finally:
        set_random_states(before, device)


def states_of_process() -> Callable[[], set[str]]:
    """A function that sets the generators of torch, NumPy and Python back, and says which drew."""
    (of_torch,) = random_states(_CPU)
    of_numpy = np.random.get_state()  # noqa: NPY002 (PyG's)
    of_python = random.getstate()
    of_devices: list[Tensor] = []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        of_devices = torch.cuda.get_rng_state_all()

    def put_back() -> set[str]:
        changed = set()
        if not torch.equal(random_states(_CPU)[0], of_torch):
            changed.add('torch')
            set_random_states([of_torch], _CPU)
        if of_devices and not all(map(torch.equal, torch.cuda.get_rng_state_all(), of_devices)):
            changed.add('torch')
            torch.cuda.set_rng_state_all(of_devices)
        if not all(map(np.array_equal, np.random.get_state(), of_numpy)):  # noqa: NPY002
            changed.add('numpy')
            np.random.set_state(of_numpy)  # noqa: NPY002
        if random.getstate() != of_python:
            changed.add('random')
            random.setstate(of_python)
        return changed

    return put_back
