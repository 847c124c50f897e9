"""Threads that keep random states do not wait for each other for ever."""

from __future__ import annotations

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from ranks import run_once
from torch.testing import assert_close

from pyg_sar.utils.rng import random_states, random_states_kept, set_random_states

CPU = torch.device('cpu')


def _two_threads() -> None:
    gc.callbacks.append(lambda phase, info: time.sleep(1e-6))  # lets the other thread run
    gc.set_threshold(1)
    sys.setswitchinterval(1e-6)

    def keep() -> None:
        for _ in range(300):
            with random_states_kept(CPU):
                random_states(CPU)

    with ThreadPoolExecutor(2) as pool:
        for thread in [pool.submit(keep) for _ in range(2)]:
            thread.result()


def test_two_threads_end() -> None:
    """torch 2.13 held two locks: a collection inside of torch.get_rng_state let both wait."""
    run_once(_two_threads, 1)


def test_states_are_kept_and_set() -> None:
    states = random_states(CPU)
    first = torch.rand(3)
    with random_states_kept(CPU):
        second = torch.rand(3)
    assert_close(torch.rand(3), second, rtol=0, atol=0)
    set_random_states(states, CPU)
    assert_close(torch.rand(3), first, rtol=0, atol=0)
