"""What gets at memory that is away, in every way that torch and Python have, gets what it held."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alike import assert_bits
from copied_modules import copied
from few import few
from launch.in_turns.programs import SIZE, in_turns, is_away, others_turn
from torch import Tensor

from pyg_sar.comm import ranks
from pyg_sar.comm.turns import LazySend
from pyg_sar.nn.reuse import kept_copy
from pyg_sar.utils import offload as evictable


def lend(to: int, rows: Tensor, index: Tensor) -> None:
    """Offers another rank rows, which it takes in its turn."""

    def make(out: list[Tensor]) -> None:
        evictable.select_rows(out[0], rows, index)

    like = rows.new_empty(1).expand(index.numel(), *rows.shape[1:])
    _box(ranks.rank(), to).append(LazySend([like], make, [rows]))


def await_lent(of: int) -> None:
    """Returns once another rank has lent rows."""
    own, box = ranks.current(), _box(of, ranks.rank())
    own.turns.wait(own.rank, lambda: len(box) > 0)


def _box(of: int, to: int) -> deque[LazySend]:
    return ranks.current().boxes.sends[of, to, 'rows']


def borrow(of: int, *shape: int) -> Tensor:
    """Takes what another rank has lent."""
    (came,) = _box(of, ranks.rank()).popleft().take(lambda: [torch.empty(shape)])
    return came


READS: dict[str, Callable[[Tensor], Any]] = {
    'operation': lambda t: t + 0,
    'view': lambda t: t.view(10, -1)[3:5],
    'detach': lambda t: t.detach().data,
    'tolist': lambda t: torch.tensor(t.tolist()),
    'numpy': lambda t: torch.from_numpy(t.numpy().copy()),
    'asarray': lambda t: torch.from_numpy(np.asarray(t).copy()),
    'dlpack': lambda t: torch.from_numpy(np.from_dlpack(t).copy()),
    'to_dlpack': lambda t: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).clone(),
    'torch.to_dlpack': lambda t: torch.from_dlpack(torch.to_dlpack(t)).clone(),
    'save': lambda t: copied(t, 'torch.save'),
    'deepcopy': copy.deepcopy,
    'storage': lambda t: torch.tensor(t.untyped_storage().tolist()),
    'out': lambda t: torch.mul(t, 2, out=t),
    'inplace': lambda t: t.mul_(3),
    'list': lambda t: torch._foreach_mul([t, t[1:]], 2)[1],
    'sparse': lambda t: t.view(10, -1).to_sparse_csr().sum(),
    'array_of': lambda t: torch.from_numpy(evictable.array_of(t).copy()),
    'item': lambda t: t[17].item(),
    'repr': repr,
    'compare': lambda t: torch.equal(t, t.clone()),
    'share': lambda t: t.share_memory_().sum(),
}


def check_read(read: Callable[[Tensor], Any], *args: Any, device: str = 'cpu', **options: Any):
    """What was away is read as what stayed, and both are the same afterwards."""

    def program() -> None:
        generator = torch.Generator().manual_seed(ranks.rank())
        there = torch.randn(SIZE, generator=generator).to(device)
        evictable.keep_here(there)
        held = there.clone()
        others_turn()
        assert is_away(held)
        assert_bits(read(held), read(there))
        others_turn()
        assert torch.equal(held, there)

    in_turns(program, *args, **options)


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support')  # the first of a process
@pytest.mark.parametrize('way', few(READS, every=2))
def test_every_way_to_read(tmp_path: Path, way: str) -> None:
    check_read(READS[way], tmp_path)


STORAGES: dict[str, Callable[[torch.UntypedStorage], Any]] = {
    'clone': lambda s: s.clone(),
    'deepcopy': copy.deepcopy,
    'copy': copy.copy,
    'new': lambda s: torch.UntypedStorage(s.nbytes()).copy_(s),
}


@pytest.mark.parametrize('way', few(STORAGES, every=2))
def test_storages_that_were_made_of_storages(tmp_path: Path, way: str) -> None:
    """Whoever has one reads and writes what its tensors hold; then they may go."""

    def program() -> None:
        held = torch.arange(SIZE) + 1000.0 * ranks.rank()
        numbers = held.view(torch.uint8).tolist()
        storage = STORAGES[way](held.untyped_storage())
        del held
        tensor = torch.empty(0).set_(storage)
        others_turn()
        others_turn()
        assert tensor[3].item() == 3 + 1000.0 * ranks.rank()
        assert storage.tolist()[12:16] == numbers[12:16]
        others_turn()
        assert storage.tolist() == numbers
        storage.fill_(0)
        others_turn()
        assert not tensor.any()
        tensor += 3
        del storage
        others_turn()
        assert is_away(tensor)
        assert torch.equal(tensor, torch.full((SIZE,), 3.0))

    in_turns(program, tmp_path)


WRITES: dict[str, Callable[[Tensor], Any]] = {
    'inplace': lambda t: t.add_(1),
    'out': lambda t: torch.add(t, 1, out=t),
    'list': lambda t: torch._foreach_add_([t], 1),
    'view': lambda t: t.view(10, -1)[2].fill_(7),
    'index': lambda t: t.__setitem__(slice(3, 9), 5.0),
    'data': lambda t: t.data.zero_(),
    'numpy': lambda t: np.add(t.numpy(), 1, out=t.numpy()),
    'array_of': lambda t: np.add(1, 2, out=evictable.array_of(t, is_written=True)[:1]),
    'resize': lambda t: t.resize_(2 * SIZE).fill_(3),
    'storage': lambda t: t.untyped_storage().fill_(0),
}


@pytest.mark.parametrize('way', few(WRITES, every=2))
def test_what_is_written_after_it_was_away_is_written_again(tmp_path: Path, way: str) -> None:
    def program() -> None:
        held, there = torch.ones(SIZE), torch.ones(SIZE)
        evictable.keep_here(there)
        others_turn()
        held.sum()  # it is here, and unchanged
        for each in (held, there):
            WRITES[way](each)
        others_turn()
        assert torch.equal(held, there)

    in_turns(program, tmp_path)


def test_what_did_not_change_is_written_once_and_what_dies_never(tmp_path: Path) -> None:
    def program() -> None:
        held = torch.ones(SIZE)
        for _ in range(5):
            others_turn()
            held.sum()
            held * 2  # dies

    figures = in_turns(program, tmp_path).figures
    assert figures.written == 2 * 4 * SIZE
    assert figures.evictions == 2 * 5
    assert figures.peak == 2 * 4 * SIZE


def test_a_budget_that_suffices_moves_nothing(tmp_path: Path) -> None:
    def program() -> None:
        held = torch.ones(SIZE)
        others_turn()
        held.sum()

    figures = in_turns(program, tmp_path, 2, '1MB').figures
    assert (figures.evictions, figures.written, figures.read) == (0, 0, 0)


def test_the_rank_that_waits_longest_goes_first(tmp_path: Path) -> None:
    def program() -> list[bool]:
        held = torch.ones(SIZE)
        away = []
        for _ in range(4):
            others_turn()
            away.append(is_away(held))
            held.sum()
        return away

    # There is room for three of four, and for one that an operation would make. Were the least
    # recently used one to go, all but one of 16 times what a rank needs would be away.
    found = in_turns(program, tmp_path, 4, 4 * 4 * SIZE)
    assert 0 < sum(map(sum, found.results)) <= 8


@pytest.mark.parametrize('memory', [0, 1 << 30])
def test_rows_are_what_they_were_when_they_were_offered(tmp_path: Path, memory: int) -> None:
    def program() -> None:
        own, others = ranks.rank(), 1 - ranks.rank()
        rows, index = torch.full((SIZE, 2), float(own)), torch.arange(0, SIZE, 3)
        for step in range(3):
            lend(others, rows, index)
            await_lent(others)
            if own == 1:
                rows += 10  # rank 0 has not taken them
            came = borrow(others, index.numel(), 2)
            assert torch.equal(came, torch.full_like(came, others + 10.0 * step))
            if own == 0:
                rows += 10

    in_turns(program, tmp_path, memory=memory)


NUM_ROWS = 200_000  # reads of 1 MiB at most: these and large rows take more


@pytest.mark.parametrize(
    'index',
    [
        *([], [7], range(NUM_ROWS), [3, 3, 4, 9, 9, 11], [0, 1, NUM_ROWS - 2, NUM_ROWS - 1]),
        *(range(0, NUM_ROWS, 1_000), range(NUM_ROWS - 1, -1, -999)),
        torch.rand(NUM_ROWS, generator=torch.Generator().manual_seed(0)).lt(0.3).nonzero().view(-1),
        'large rows',
    ],
    ids=['none', 'one', 'all', 'twice', 'at the ends', 'far', 'backwards', 'some', 'large rows'],
)
def test_rows_of_any_index_are_read(tmp_path: Path, index: Any) -> None:
    size = (NUM_ROWS, 3)
    if isinstance(index, str):
        index, size = [0, 1, 3, 4, 8, 11], (12, 1 << 18)
    index = torch.as_tensor(index, dtype=torch.int64)

    def all_rows() -> Tensor:
        return torch.arange(math.prod(size) + 5, dtype=torch.float32)[5:].view(size)

    def program() -> None:
        rows = all_rows()
        others_turn()
        if ranks.rank() == 0:
            assert evictable.is_read_by_rows(rows)
            found = evictable.selected_rows(rows, index)
            assert evictable.is_read_by_rows(rows)
            assert torch.equal(found, all_rows()[index])

    in_turns(program, tmp_path)


def test_an_error_while_rows_are_made_leaves_the_offer(tmp_path: Path) -> None:
    """A program may go on after it; then nothing has been written, and nothing is forgotten."""

    def program() -> None:
        own, others, errors = ranks.rank(), 1 - ranks.rank(), 0
        rows, fails = torch.full((SIZE, 2), float(own)), [own == 1]

        def make(out: list[Tensor]) -> None:
            if fails.pop() if fails else False:
                raise OSError('read')
            out[0].copy_(rows)

        _box(own, others).append(LazySend([rows.new_empty(1).expand(SIZE, 2)], make, [rows]))
        await_lent(others)
        while own == 1 and rows[0, 0] < 10:  # rank 0 has not taken them
            try:
                rows += 10
            except OSError:
                errors += 1
        came = borrow(others, SIZE, 2)
        assert errors == own
        assert torch.equal(came, torch.full_like(came, others))

    in_turns(program, tmp_path)


@pytest.mark.parametrize('changes', [False, True])
def test_a_kept_copy_is_evicted_as_one_and_is_what_it_was(tmp_path: Path, changes: bool) -> None:
    def program() -> Tensor | None:
        weight = torch.ones(SIZE, requires_grad=True)
        rows = weight * 2
        copy = kept_copy(rows)
        out = copy.square().sum()
        others_turn()
        if changes:
            rows.data.mul_(7)
            others_turn()
        out.backward()
        assert torch.equal(weight.grad, torch.full((SIZE,), 8.0))
        assert torch.equal(rows, torch.full((SIZE,), 14.0 if changes else 2.0))
        return weight.grad

    figures = in_turns(program, tmp_path).figures
    if not changes:  # weights, rows with their copy, and the first rank's gradient
        assert figures.written == 5 * 4 * SIZE


def test_rows_of_others_go_before_the_turn_ends(tmp_path: Path) -> None:
    def program() -> Tensor:
        others, rows = 1 - ranks.rank(), torch.full((SIZE,), float(ranks.rank()))
        lend(others, rows, torch.arange(3))
        await_lent(others)
        own = rows.sum()
        came = borrow(others, 3)
        made = torch.ones(SIZE)  # there is no room for it, for own rows and for those of the other
        return own + came.sum() + made.sum()

    found = in_turns(program, tmp_path, 2, 2 * 4 * SIZE)
    assert found.figures.evictions > 0
    assert found.results == [1003.0, 2000.0]


def test_what_others_have_still_to_read_goes_last(tmp_path: Path) -> None:
    def program() -> float:
        rank = ranks.rank()
        to, of = (rank + 1) % 4, (rank - 1) % 4
        rows = torch.full((SIZE,), float(rank))
        lend(to, rows, torch.arange(3))
        held = torch.ones(SIZE)  # made later, so else it would stay longer
        await_lent(of)
        return (held.sum() + borrow(of, 3).sum()).item()

    found = in_turns(program, tmp_path, 4, 4 * 4 * SIZE)
    assert found.results == [1009.0, 1000.0, 1003.0, 1006.0]
    assert found.figures.read > 0
    assert found.figures.read_of_others == 0


def test_tensors_from_before_stay(tmp_path: Path) -> None:
    before = torch.ones(SIZE)

    def program() -> None:
        view = before[:500]
        others_turn()
        assert not is_away(view)

    in_turns(program, tmp_path)
