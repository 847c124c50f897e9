"""Random numbers: as functions of a seed and of ids, and from the generators of torch.

What is drawn for a node's id and a column depends neither on which rank owns the node, nor on how
many ranks there are, nor on what was drawn before. The hash is SplitMix64 (Steele, Lea and Flood
2014, "Fast splittable pseudorandom number generators"): every key steps through the sequence whose
seed is the hash of the keys before it. torch's int64 arithmetic is modulo 2^64, as the hash needs.

States of generators are for threads that train at the same time. torch holds the lock of a
generator and that of Python while it makes the tensor of a state. If garbage is collected then,
another thread may get Python's lock, and wait for the generator with it: neither goes on. So one
thread at a time asks for a state here, or sets it.
"""

from __future__ import annotations

import math
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
    """A function that sets the process back to its state now, and says which generators drew.

    That is the generators of torch, NumPy and Python, and the default dtype.
    """
    (of_torch,) = random_states(_CPU)
    of_numpy = np.random.get_state()  # noqa: NPY002 (PyG's)
    of_python, dtype = random.getstate(), torch.get_default_dtype()
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
        torch.set_default_dtype(dtype)
        return changed

    return put_back


_STEP = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
_HALF = 2**32 - 1


def uniform(seed: int, *keys: Tensor | int) -> Tensor:
    """Numbers from [0, 1), float64, uniform, and independent for different seeds or keys.

    `keys` are integers or int64 tensors that broadcast, such as ids ``[N, 1]`` and columns ``[C]``.
    """
    return _shifted(hashed(seed, *keys), 11).double() * 2.0**-53


def normal(seed: int, *keys: Tensor | int) -> Tensor:
    """Numbers from the standard normal distribution, for keys as :func:`uniform` takes them.

    By Box and Muller (1958), from the two halves of one hash: at most 6.7 deviations from 0. Those
    of :func:`uniform` for the same seed and keys are not independent of them.
    """
    bits = hashed(seed, *keys)
    first, second = (half.double() * 2.0**-32 for half in (_shifted(bits, 32), bits & _HALF))
    return (-2 * torch.log1p(-first)).sqrt() * torch.cos(2 * math.pi * second)


def hashed(seed: int, *keys: Tensor | int) -> Tensor:
    """64 bits as int64, for keys as :func:`uniform` takes them, which uses the upper 53 bits."""
    return hashed_on(_mixed(torch.tensor(seed)), *keys)


def hashed_on(state: Tensor, *keys: Tensor | int) -> Tensor:
    """Continues :func:`hashed` from `state` with more keys."""
    for key in keys:
        state = _mixed(state + (torch.as_tensor(key) + 1) * _STEP)
    return state


def below(hashes: Tensor, bound: Tensor) -> Tensor:
    """Whole numbers from ``[0, bound)``, uniform up to ``bound / 2^64``: the hash times the bound.

    `hashes` are unsigned numbers of 64 bits; `bound` is int64 from 1 to ``2^31`` and broadcasts
    with them. The upper 64 bits of the product of 128, as Lemire (2019, "Fast random integer
    generation in an interval") takes them.
    """
    lower = (hashes & _HALF).mul_(bound).bitwise_right_shift_(32)
    return _shifted(hashes, 32).mul_(bound).add_(lower).bitwise_right_shift_(32)


LANES = 4
"""Numbers of 16 bits in a hash."""


def kept(p: float, seed: int, *keys: Tensor | int, width: int) -> Tensor:
    """Which of `width` numbers for every key a dropout keeps.

    Args:
        p: The share that is dropped, from 0 to 1; rounded to a multiple of ``2^-16``.
        seed: Any integer of 64 bits.
        *keys: As :func:`uniform` takes them.
        width: How many numbers there are.

    Returns:
        bool ``[..., width]``, after the shape that the keys broadcast to.
    """
    state = hashed(seed, *keys).unsqueeze(-1)
    return kept_of(hashed_on(state, torch.arange(-(-width // LANES))), p, width)


def kept_of(hashes: Tensor, p: float, width: int) -> Tensor:
    """Which of `width` numbers a dropout keeps, bool, of hashes ``[..., ceil(width / 4)]``.

    A hash is four numbers of 16 bits; the share that is dropped is a multiple of ``2^-16``.
    """
    lanes = hashes.view(torch.int16)[..., :width]
    bound = round(p * 2**16) - 2**15
    return torch.zeros_like(lanes, dtype=torch.bool) if bound == 2**15 else lanes >= bound


def unit(hashes: Tensor) -> Tensor:
    """Numbers from (0, 1), float64, of the upper 53 bits of hashes: never 0."""
    return _shifted(hashes, 11).double().add_(0.5).mul_(2.0**-53)


def _mixed(state: Tensor) -> Tensor:
    """The output of SplitMix64 for a state."""
    state = _shifted(state, 30).bitwise_xor_(state).mul_(_FACTORS[0])
    state = _shifted(state, 27).bitwise_xor_(state).mul_(_FACTORS[1])
    return _shifted(state, 31).bitwise_xor_(state)


def _shifted(state: Tensor, bits: int) -> Tensor:
    """To the right, with zeros from the left: torch's own shift copies the sign."""
    return (state >> bits).bitwise_and_(2 ** (64 - bits) - 1)
