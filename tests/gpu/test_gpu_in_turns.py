"""Ranks in turn on a GPU give the bits of ranks by gloo, whatever waits on the host or the disk."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from alike import assert_bits
from launch.in_turns.faults import Calls, fails
from launch.in_turns.programs import KINDS, NUM_RANKS, SIZE, in_turns, is_away, others_turn, train
from launch.in_turns.test_evictions import READS as READS_OF_HOST
from launch.in_turns.test_evictions import check_read
from setups import on
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_sar
from pyg_sar.comm.send_recv import copy_run
from pyg_sar.launch.in_turns.places import OnHost
from pyg_sar.launch.in_turns.run import play, run_in_turns
from pyg_sar.utils import offload as evictable

pytestmark = pytest.mark.cuda_sim
FEW = ('sage', 'gat')


def _in_order(program: Callable[..., Any], *args: Any) -> Any:
    torch.use_deterministic_algorithms(True)  # otherwise a GPU adds up in any order
    try:
        return program(*args)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    'kind', [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_bits_of_processes(folder: Path, kind: str) -> None:
    expected = on('gloo', _in_order, train, str(folder), kind, 'cuda')
    _in_order(_check_bits, folder, partial(train, str(folder), kind, 'cuda'), expected)


def _check_bits(folder: Path, program: Callable[[], Any], expected: list[Any]) -> None:
    def figures(memory: int, spill: Path | None = None, **options: Any) -> Any:
        found = in_turns(program, spill, NUM_RANKS, memory, **options)
        assert_bits(found.results, expected)
        return found.figures

    whole = figures(1 << 40, folder)
    assert whole.evictions == whole.to_host == whole.written == 0

    on_host = figures(0)  # memory of the host takes all
    assert 0 < on_host.to_host < on_host.to_device
    assert on_host.written == 0
    assert on_host.device_peak < whole.device_peak

    # There is room for one more, which may come next, and for the files that a turn reads.
    pages = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file()) // NUM_RANKS
    for host_memory in (on_host.peak + on_host.largest + pages, on_host.peak // 2, 0):
        found = figures(0, folder, host_memory=host_memory)
        assert found.device_peak == on_host.device_peak
        assert found.evictions > 0
        assert found.to_device > 0
        assert (found.written > 0) == (found.read > 0) == (host_memory < on_host.peak)
        assert found.peak <= max(host_memory, on_host.peak // 2) + found.largest  # one that is new

    half = figures(whole.device_peak // 2, folder, host_memory=0)
    assert on_host.device_peak <= half.device_peak < whole.device_peak
    assert 0 < half.written < found.written


def _epochs(folder: Path) -> None:
    data: Any = pyg_sar.load_shard(folder).to('cuda')
    model = pyg_sar.DistributedDataParallel(
        GraphSAGE(8, 64, 3, 3, norm='batch_norm').double().to('cuda')
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        loss = model(data.x, data.edge_index).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_eight_parts_need_a_quarter_of_the_memory_of_one(tmp_path: Path) -> None:
    nodes, peaks = torch.arange(8000), []
    ends = [torch.stack([nodes, (nodes + step) % 8000]) for step in (-2, -1, 1, 2, 80, 81)]
    x = torch.randn(8000, 8, dtype=torch.float64)
    graph = Data(x, torch.cat(ends, dim=1))
    for num_parts in (1, 8):
        pyg_sar.partition_graph(graph, num_parts, tmp_path / str(num_parts))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        play(partial(_epochs, tmp_path / str(num_parts)), num_parts, memory=0, least=1024)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= 0.25 * peaks[0]


OF_BOTH = ('operation', 'view', 'tolist', 'deepcopy', 'save', 'list', 'item', 'repr')
READS: dict[str, Callable[[Tensor], Any]] = {
    **{way: READS_OF_HOST[way] for way in OF_BOTH},
    'cpu': lambda t: t.cpu(),
    'storage': lambda t: torch.tensor(t.untyped_storage().cpu().tolist()),
    'interface': lambda t: (t.__cuda_array_interface__['data'][0] != 0, (t + 0).tolist()),
    'sparse': lambda t: t.view(10, -1).to_sparse_csr().values().sum(),
    'rows': lambda t: evictable.selected_rows(t.view(-1, 4), torch.arange(0, 250, 3).to('cuda')),
    'run': lambda t: copy_run(t[100:], [out := torch.empty_like(t[100:])]) or out,
}


ON_DISK: dict[str, Any] = {'host': {}, 'disk': {'host_memory': 0}}
"""Where memory waits."""


@pytest.mark.filterwarnings('ignore:Sparse CSR tensor support')  # the first of a process
@pytest.mark.parametrize('where', ON_DISK)
@pytest.mark.parametrize('way', READS)
def test_every_way_to_read(tmp_path: Path, way: str, where: str) -> None:
    spill = tmp_path if where == 'disk' else None
    check_read(READS[way], spill, device='cuda', **ON_DISK[where])


@pytest.mark.parametrize('where', ON_DISK)
@pytest.mark.parametrize('changes', [False, True])
def test_what_did_not_change_is_copied_once(tmp_path: Path, changes: bool, where: str) -> None:
    def program() -> float:
        held = torch.ones(SIZE, device='cuda')
        for _ in range(5):
            others_turn()
            held.add_(1) if changes else held.sum()
        others_turn()
        return held.mean().item()

    found = in_turns(program, tmp_path if where == 'disk' else None, **ON_DISK[where])
    assert found.results == [6.0 if changes else 1.0] * 2
    moved = 2 * (6 if changes else 1) * 4 * SIZE
    written = moved if where == 'disk' else 0
    figures = found.figures
    assert (figures.device_peak, figures.to_host, figures.written) == (4 * SIZE, moved, written)


def test_memory_of_the_host_is_given_back() -> None:
    def program() -> Tensor:
        held = torch.ones(SIZE, device='cuda')
        others_turn()
        held.sum()
        return held

    gc.collect()
    found = in_turns(program, None)
    assert found.figures.to_device > 0
    assert not [each for each in gc.get_objects() if type(each) is OnHost]


def test_nothing_is_under_way_when_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, empty, wait = [], torch.UntypedStorage.resize_, torch.cuda.synchronize

    def emptied(storage: torch.UntypedStorage, size: int) -> Any:
        if size == 0 and storage.device.type == 'cuda':
            seen.append('emptied')
        return empty(storage, size)

    def waited(device: Any = None) -> None:
        seen.append('waited')
        wait(device)

    def program() -> None:
        held = torch.ones(SIZE, device='cuda')
        for _ in range(3):
            seen.append('turn')
            others_turn()
            held.sum()

    monkeypatch.setattr(torch.UntypedStorage, 'resize_', emptied)
    monkeypatch.setattr(torch.cuda, 'synchronize', waited)
    in_turns(program, None)
    assert 'emptied' in seen
    for turn in ' '.join(seen).split('turn'):
        if 'emptied' in turn:
            assert turn.split()[0] == 'waited'


def test_memory_of_other_streams_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, 'current_stream', lambda device=None: 'another')
            held = torch.ones(SIZE, device='cuda')
        others_turn()
        return is_away(held)

    assert in_turns(program, None).results == [False] * 2


def test_ranks_draw_as_processes_do() -> None:
    def program() -> list[Tensor]:
        first = torch.rand(3, device='cuda')
        others_turn()
        return [first.cpu(), torch.rand(3, device='cuda').cpu()]

    torch.cuda.manual_seed(5)
    before = torch.cuda.get_rng_state()
    one, two = in_turns(program, None).results
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert all(map(torch.equal, one, two))
    assert torch.equal(one[0], torch.rand(3, device='cuda').cpu())


@pytest.mark.parametrize('place', [0, 1, 5])
def test_a_full_disk_is_an_error_and_the_next_run_is_right(tmp_path, monkeypatch, place):
    def program() -> list[float]:
        held = [torch.full((SIZE,), float(i), device='cuda') for i in range(4)]
        for _ in range(3):
            others_turn()
            held = [each + 1 for each in held]
        return [each.mean().item() for each in held]

    def run() -> list[Any]:
        return in_turns(program, tmp_path, host_memory=2 * 4096).results

    before = torch.cuda.memory_allocated()
    monkeypatch.setattr(os, 'pwrite', Calls('pwrite', place, fails(errno.ENOSPC)))
    with pytest.raises(OSError, match='writing') as found:
        run()
    assert found.value.filename == str(tmp_path)
    monkeypatch.undo()
    del found
    assert run() == [[3.0, 4.0, 5.0, 6.0]] * 2
    assert torch.cuda.memory_allocated() == before


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'spill' must be a folder with host_memory=1GB"):
        in_turns(others_turn, None, host_memory='1GB')
    with pytest.raises(ValueError, match="'host_memory' must be bytes"):
        in_turns(others_turn, tmp_path, host_memory=-1)


def test_one_call(folder: Path) -> None:
    def program() -> tuple[str, float]:
        device = pyg_sar.init().device
        data: Any = pyg_sar.load_shard(folder / 'one').to(device)
        return device.type, data.x.sum().item()

    found = run_in_turns(program, folder / 'one', memory=0).results
    assert len(set(found)) == 1
    assert found[0][0] == 'cuda'
