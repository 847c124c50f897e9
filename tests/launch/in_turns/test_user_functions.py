"""What a user's Python code reads inside of a call of torch: in backward, and in rules of rows."""

from __future__ import annotations

import copy
import ctypes
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launch.in_turns.programs import NUM_RANKS, write_parts
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import pyg_sar
from pyg_sar.comm import ranks, vote
from pyg_sar.comm.threads import run_threads
from pyg_sar.launch.in_turns.run import play
from pyg_sar.utils import offload as evictable

SIZE = 1000


def _saved(tensor: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


READS: dict[str, Callable[[Tensor], Tensor]] = {
    'numpy': lambda t: torch.from_numpy(t.numpy().copy()),
    'asarray': lambda t: torch.from_numpy(np.asarray(t).copy()),
    'dlpack': lambda t: torch.from_numpy(np.from_dlpack(t).copy()),
    'address': lambda t: torch.tensor((ctypes.c_float * SIZE).from_address(t.data_ptr())),
    'storage': lambda t: torch.empty(0).set_(copy.copy(t.untyped_storage())),
    'repr': lambda t: (repr(t), t.clone())[1],
    'tolist': lambda t: torch.tensor(t.tolist()),
    'deepcopy': copy.deepcopy,
    'save': _saved,
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
            with torch._C.DisableTorchFunction():
                assert held.untyped_storage().nbytes() == 0
            return grads[0] * READS[way](held), None

    def program() -> tuple[Tensor, Tensor]:
        held = torch.randn(SIZE, generator=torch.Generator().manual_seed(ranks.rank()))
        there = torch.tensor(held.tolist())
        evictable.keep_here(there)
        x = torch.ones(SIZE, requires_grad=True)
        out = Doubled.apply(x, held).sum()  # type: ignore[no-untyped-call]
        vote.agree(0)  # the last rank here goes on by itself,
        vote.agree(0)  # and waits here
        out.backward()
        assert x.grad is not None
        return x.grad, there

    for grad, there in play(program, 2, memory=0, spill=tmp_path, least=256).results:
        assert torch.equal(grad, there)


def test_rows_that_a_backward_gets_from_a_hook(tmp_path: Path) -> None:
    write_parts(tmp_path)

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        data: Any = pyg_sar.load_shard(tmp_path / 'one')
        conv = pyg_sar.SARConv(SAGEConv(8, 16)).to(data.x.dtype)
        with torch.autograd.graph.save_on_cpu():
            loss = conv(data.x, data.edge_index).relu().square().mean()
        loss.backward()
        return [parameter.grad for parameter in conv.parameters() if parameter.grad is not None]

    expected = run_threads(program, NUM_RANKS)
    found = play(program, NUM_RANKS, memory=0, spill=tmp_path, least=256).results
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_a_plain_tensor_that_rows_meet(tmp_path: Path) -> None:
    write_parts(tmp_path)

    def program() -> Tensor:
        torch.manual_seed(0)
        data: Any = pyg_sar.load_shard(tmp_path / 'one')
        lstm, whole = nn.LSTM(8, 16, dtype=data.x.dtype), torch.ones(240, 8, dtype=data.x.dtype)
        vote.agree(0)
        vote.agree(0)
        out = (data.x + whole).unsqueeze(0)
        return pyg_sar.local(lstm(out)[0]).detach()

    expected = run_threads(program, NUM_RANKS)
    found = play(program, NUM_RANKS, memory=0, spill=tmp_path, least=256)
    assert all(map(torch.equal, found.results, expected))
