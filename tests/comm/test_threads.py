"""Ranks as threads of one process: turns, errors, what a rank sets for the process, sums."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_as_threads, run_ranks
from torch import Tensor
from torch_geometric.nn import Sequential

from pyg_sar.comm.collectives import all_gather_alike, all_reduce_sum, all_to_all, all_to_all_counts
from pyg_sar.comm.errors import in_call
from pyg_sar.comm.ranks import chosen, rank
from pyg_sar.comm.ranks import world_size as num_ranks
from pyg_sar.comm.threads import run_threads
from pyg_sar.comm.vote import agree, vote


def _program(seed: int, log: list[int] | None = None) -> list[Any]:
    """Collectives at random, the same on all ranks."""
    choices = random.Random(seed)
    generator = torch.Generator().manual_seed(rank())
    found: list[Any] = []
    for _ in range(choices.randrange(1, 8)):
        if log is not None:
            log.append(rank())
        kind, size = choices.randrange(4), choices.randrange(1, 20)
        if kind == 0:
            dtype = choices.choice([torch.float32, torch.float64, torch.int64])
            own = torch.randint(100, (size,), generator=generator).to(dtype) / 3
            found.append(all_reduce_sum(own.to(dtype)))
        elif kind == 1:
            found.append(agree((rank(), size)))
        elif kind == 2:
            counts = [choices.randrange(4) for _ in range(num_ranks())]
            ours = all_to_all_counts(torch.tensor(counts))
            rows = torch.full((sum(counts), 2), float(rank()))
            found.append(all_to_all(rows, counts, ours.tolist()))
        else:
            found.append(vote('a decision', size % 3 > 1 or not rank(), rank() > 1))
    return found


def _equal(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, Tensor):
        return torch.equal(ours, theirs)
    return bool(ours == theirs)


@pytest.mark.parametrize('world_size', [1, 2, 3, 4])
def test_programs_have_the_results_of_processes(world_size: int) -> None:
    for seed in range(15):
        threads = run_threads(_program, world_size, seed)
        processes = run_ranks(_program, world_size, seed)
        for ours, theirs in zip(threads, processes, strict=True):
            assert len(ours) == len(theirs)
            assert all(map(_equal, ours, theirs))


NUMBERS = 1, 3, 7, 100, 1001, 300_001, 1_000_003
DTYPES = torch.float32, torch.float64, torch.bfloat16


@pytest.mark.parametrize('world_size', [2, 3, 4])
def test_sums_have_the_bits_of_gloo(world_size: int) -> None:
    found = [on(_sums, world_size) for on in (run_as_threads, run_ranks)]
    for ours, theirs in zip(*found, strict=True):
        assert all(map(torch.equal, ours, theirs))


def _sums() -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank())
    own = [torch.randn(n, generator=generator).to(d) for n, d in product(NUMBERS, DTYPES)]
    return [all_reduce_sum(each) for each in own]


def test_the_order_is_always_the_same() -> None:
    logs: list[list[int]] = [[] for _ in range(5)]
    for log in logs:
        run_threads(_program, 3, 5, log)
    assert all(log == logs[0] for log in logs)


def _waits() -> None:
    with in_call('here'):
        if rank() == 0:
            agree(1)


def test_a_deadlock_names_both() -> None:
    with pytest.raises(RuntimeError, match=r'rank 0 is at a comparison .* rank 1 has finished'):
        run_threads(_waits, 2)
    assert threading.active_count() < 50


def _other_operations() -> None:
    agree(1) if rank() == 1 else all_reduce_sum(torch.ones(3))


def _other_shapes() -> None:
    all_reduce_sum(torch.ones(3 + rank()))


@pytest.mark.parametrize(
    ('program', 'words'),
    [
        (_other_operations, 'rank 0 at a sum over all ranks .* rank 1 at a comparison of all'),
        (_other_shapes, r'rank 0 at a sum over all ranks .*\(3,\).* rank 1 at .*\(4,\)'),
    ],
)
def test_other_operations_name_both(program: Callable[[], None], words: str) -> None:
    with pytest.raises(RuntimeError, match=f'^the ranks are at different operations: {words}'):
        run_threads(program, 2)


_OPERATIONS: list[Callable[[], object]] = [
    lambda: agree('a'),
    lambda: all_reduce_sum(torch.ones(3)),
    lambda: all_gather_alike(torch.ones(2)),
    lambda: all_to_all(torch.ones(3, 2), [1] * 3, [1] * 3),
]


def _in_any_order(seed: int) -> None:
    """Three operations, in an order of each rank's own; an error that is caught changes nothing."""
    for operation in random.Random(f'{seed} {rank() % 2}').sample(_OPERATIONS, 3):
        with suppress(RuntimeError, TypeError, IndexError):
            operation()


@pytest.mark.parametrize('seed', range(20))
def test_any_two_orders_end_in_one_error(seed: int) -> None:
    orders = [random.Random(f'{seed} {i}').sample(range(4), 3) for i in range(2)]
    words = r'^the ranks (are at different operations|wait for each)'
    differ = orders[0] != orders[1]
    with pytest.raises(RuntimeError, match=words) if differ else nullcontext():
        run_threads(_in_any_order, 3, seed)


def _raises(ended: list[int]) -> None:
    try:
        if rank() == 1:
            raise KeyError('of rank 1')
        agree(1)
    finally:
        ended.append(rank())


def test_an_exception_ends_all() -> None:
    ended: list[int] = []
    with pytest.raises(KeyError, match='of rank 1') as found:
        run_threads(_raises, 3, ended)
    assert sorted(ended) == [0, 1, 2]
    assert '(on rank 1 of 3)' in str(getattr(found.value, '__notes__', '(on rank 1 of 3)'))


def _draws() -> list[float]:
    found = []
    for _ in range(3):
        found += [torch.rand(()).item(), np.random.rand(), random.random()]  # noqa: NPY002
        agree(0)
    return found


def test_every_rank_has_random_states_of_its_own() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    alone = run_threads(_draws, 1)[0]
    assert torch.equal(torch.get_rng_state(), before)
    assert run_threads(_draws, 3) == [alone] * 3


def _dtypes() -> list[torch.dtype]:
    found = []
    for dtype in (torch.float64, torch.float16):
        torch.set_default_dtype(dtype if rank() else torch.bfloat16)
        agree(0)
        found.append(torch.get_default_dtype())
    return found


def test_every_rank_has_a_default_dtype_of_its_own() -> None:
    others = [torch.float64, torch.float16]
    assert run_threads(_dtypes, 3) == [[torch.bfloat16] * 2, others, others]
    assert torch.get_default_dtype() == torch.float32


def _sequential(inputs: str) -> Tensor:
    model = Sequential(inputs, [(torch.nn.Identity(), 'x -> x')])
    return model(*torch.eye(inputs.count(',') + 1))


def test_code_that_pyg_generates_is_of_its_world() -> None:
    # PyG names it by a draw of `random`, whose state the caller has back.
    for inputs in ['x', 'x, y', 'x, y, z']:
        for out in run_threads(_sequential, 2, inputs):
            assert out[0] == 1
    assert _sequential('y, x')[1] == 1


def test_a_world_inside_a_world() -> None:
    assert run_threads(lambda: run_threads(rank, 2), 2) == [[0, 1]] * 2
    assert chosen.value is None


def test_no_rank() -> None:
    with pytest.raises(ValueError, match="'world_size' must be at least 1"):
        run_threads(rank, 0)
