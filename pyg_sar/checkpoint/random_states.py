"""The states of the random number generators that a rank draws from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Of torch (CPU, and the current CUDA device if CUDA is used), NumPy and Python."""
    name, key, *rest = np.random.get_state()  # noqa: NPY002 (what PyG draws from)
    version, internal, gauss = random.getstate()
    states = {
        'torch': torch.get_rng_state(),
        'numpy': (str(name), torch.from_numpy(np.asarray(key, dtype=np.int64)), *rest),
        'python': (version, torch.tensor(internal), gauss),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states['cuda'] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what :func:`random_states` has told."""
    name, key, *rest = states['numpy']
    np.random.set_state((name, key.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = states['python']
    random.setstate((version, tuple(internal.tolist()), gauss))
    torch.set_rng_state(states['torch'])
    if 'cuda' in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states['cuda'])
