"""Copies share the memory of a constant that is kept, until somebody writes to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pyg_sar.comm import ranks, vote
from pyg_sar.launch.in_turns.run import play
from pyg_sar.nn.reuse import lent_copy
from pyg_sar.utils import offload as evictable

SIZE = 1000


def _others_turn() -> None:
    vote.agree(0)  # the last rank here goes on by itself,
    vote.agree(0)  # and waits here


WRITES: dict[str, Callable[[Tensor], Any]] = {
    'nothing': lambda t: t + 1,
    'in place': lambda t: t.add_(1),
    'a view': lambda t: t.view(10, -1)[3].fill_(7),
    'data': lambda t: t.data.zero_(),
    'out': lambda t: torch.mul(t, 3, out=t),
    'numpy': lambda t: t.detach().numpy().fill(3),
}


@pytest.mark.parametrize('way', WRITES)
def test_what_is_written_to_a_copy_is_in_no_other(tmp_path: Path, way: str) -> None:
    def program() -> list[Tensor]:
        kept, found = torch.arange(SIZE).float(), []
        for _ in range(3):
            copy = lent_copy(kept)
            found.append(copy.clone())
            view = copy.detach()
            del copy
            _others_turn()
            WRITES[way](view)
            _others_turn()
        return found

    results = play(program, 2, memory=0, spill=tmp_path, least=256).results
    for copy in (copy for of_rank in results for copy in of_rank):
        assert torch.equal(copy, torch.arange(SIZE).float())


def test_copies_are_not_written_to_the_disk(tmp_path: Path) -> None:
    def program(copies: Callable[[Tensor], Tensor]) -> None:
        kept = torch.ones(SIZE)
        for _ in range(3):
            copy = copies(kept)
            _others_turn()
            copy.sum()

    written = [
        play(partial(program, copies), 2, memory=0, spill=tmp_path, least=256).figures.written
        for copies in (lent_copy, torch.clone)
    ]
    assert written == [2 * 4 * SIZE, 4 * 2 * 4 * SIZE]


def test_what_is_read_of_other_ranks_is_told_apart(tmp_path: Path) -> None:
    def program() -> None:
        ours, others = ranks.current(), 1 - ranks.rank()
        rows, index = torch.full((SIZE,), float(ours.rank)), torch.arange(3)

        def make(out: list[Tensor]) -> None:
            evictable.select_rows(out[0], rows, index)

        ours.send_lazily(others, 'rows', [rows.new_empty(3)], make, [rows])
        ours.await_sends({others: 1}, 'rows')
        ours.take(others, 'rows', lambda: [rows.new_empty(3)])
        _others_turn()
        rows.sum()

    figures = play(program, 2, memory=0, spill=tmp_path, least=256).figures
    assert figures.read_of_others == 2 * 4 * 3
    assert figures.read == 2 * 4 * (SIZE + 3)
    assert 'of other parts' in str(figures)
