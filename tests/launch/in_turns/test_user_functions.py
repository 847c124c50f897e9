"""What Python code reads and writes past torch: in backward, in rules of rows, of lent copies."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from alike import assert_bits
from launch.in_turns.programs import NUM_RANKS, SIZE, in_turns, is_away, others_turn
from launch.in_turns.test_evictions import READS as ALL_READS
from launch.in_turns.test_evictions import await_lent, borrow, lend
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm import ranks
from pyg_sar.comm.threads import run_threads
from pyg_sar.nn.reuse import lent_copy
from pyg_sar.utils import offload as evictable

OF_TENSORS = ('numpy', 'asarray', 'dlpack', 'tolist', 'deepcopy', 'save')
READS: dict[str, Callable[[Tensor], Tensor]] = {
    **{way: ALL_READS[way] for way in OF_TENSORS},
    'address': lambda t: torch.tensor((ctypes.c_float * SIZE).from_address(t.data_ptr())),
    'storage': lambda t: torch.empty(0).set_(copy.copy(t.untyped_storage())),
    'repr': lambda t: (repr(t), t.clone())[1],
}


@pytest.mark.parametrize('way', READS)
def test_what_a_backward_reads(tmp_path: Path, way: str) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, held: Tensor) -> Tensor:
            ctx.save_for_backward(held)
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            (held,) = ctx.saved_tensors
            assert is_away(held)
            return grads[0] * READS[way](held), None

    def program() -> None:
        held = torch.randn(SIZE, generator=torch.Generator().manual_seed(ranks.rank()))
        there = torch.tensor(held.tolist())
        evictable.keep_here(there)
        x = torch.ones(SIZE, requires_grad=True)
        out = Doubled.apply(x, held).sum()  # type: ignore[no-untyped-call]
        others_turn()
        out.backward()
        assert torch.equal(x.grad, there)

    in_turns(program, tmp_path)


def test_rows_that_a_backward_gets_from_a_hook(folder: Path) -> None:
    def program() -> list[Tensor]:
        torch.manual_seed(0)
        data: Any = pyg_sar.load_shard(folder / 'one')
        conv = pyg_sar.SARConv(SAGEConv(8, 16)).to(data.x.dtype)
        with torch.autograd.graph.save_on_cpu():
            loss = conv(data.x, data.edge_index).relu().square().mean()
        loss.backward()
        return [parameter.grad for parameter in conv.parameters() if parameter.grad is not None]

    expected = run_threads(program, NUM_RANKS)
    assert_bits(in_turns(program, folder, NUM_RANKS).results, expected)


def test_a_plain_tensor_that_rows_meet(folder: Path) -> None:
    def program() -> Tensor:
        torch.manual_seed(0)
        data: Any = pyg_sar.load_shard(folder / 'one')
        lstm, whole = nn.LSTM(8, 16, dtype=data.x.dtype), torch.ones(240, 8, dtype=data.x.dtype)
        others_turn()
        out = (data.x + whole).unsqueeze(0)
        return pyg_sar.local(lstm(out)[0]).detach()

    expected = run_threads(program, NUM_RANKS)
    assert_bits(in_turns(program, folder, NUM_RANKS).results, expected)


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
    def program() -> None:
        kept = torch.arange(SIZE).float()
        for _ in range(3):
            copy = lent_copy(kept)
            assert torch.equal(copy, torch.arange(SIZE).float())
            view = copy.detach()
            del copy
            others_turn()
            WRITES[way](view)
            others_turn()

    in_turns(program, tmp_path)


def test_copies_are_not_written_to_the_disk(tmp_path: Path) -> None:
    def program(copies: Callable[[Tensor], Tensor]) -> None:
        kept = torch.ones(SIZE)
        for _ in range(3):
            copy = copies(kept)
            others_turn()
            copy.sum()

    written = [
        in_turns(partial(program, copies), tmp_path).figures.written
        for copies in (lent_copy, torch.clone)
    ]
    assert written == [2 * 4 * SIZE, 4 * 2 * 4 * SIZE]


def test_what_is_read_of_other_ranks_is_told_apart(tmp_path: Path) -> None:
    def program() -> None:
        others, rows = 1 - ranks.rank(), torch.full((SIZE,), float(ranks.rank()))
        lend(others, rows, torch.arange(3))
        await_lent(others)
        borrow(others, 3)
        others_turn()
        rows.sum()

    figures = in_turns(program, tmp_path).figures
    assert figures.read_of_others == 2 * 4 * 3
    assert figures.read == 2 * 4 * (SIZE + 3)
    assert 'of other parts' in str(figures)
