"""The simulated device is as strict as a GPU, and a little more."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from small_graphs import attempt
from torch import Tensor

from pyg_sar.ops.spmm import _pattern

NCCL = 'cpu:gloo,cuda:nccl'


def _cuda(*size: int) -> Tensor:
    return torch.randn(*size, device='cuda')


def test_computes_what_a_cpu_does() -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    there = x.detach().to('cuda').requires_grad_()
    for each in (x, there):
        (each.softmax(1) @ each.detach().t()).square().sum().backward()
    assert there.grad is not None
    assert there.grad.device == torch.device('cuda:0')
    assert torch.equal(there.grad.cpu(), x.grad)


def test_backward_runs_in_another_thread() -> None:
    seen = []
    x = _cuda(3).requires_grad_()
    y = x * 2
    y.register_hook(lambda _: seen.append(threading.current_thread()))
    y.sum().backward()
    assert seen != [threading.main_thread()]


def test_new_memory_is_garbage() -> None:
    assert torch.empty(4, device='cuda').isnan().all()
    assert (torch.empty(4, dtype=torch.int64, device='cuda') == -1).all()


def test_memory_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    kept = _cuda(1000)
    assert torch.cuda.memory_allocated() - before == kept.nbytes
    del kept
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4000


def test_memory_is_emptied_and_taken_again() -> None:
    kept = torch.arange(6.0, device='cuda')
    view, storage, before = kept[2:4], kept.untyped_storage(), torch.cuda.memory_allocated()
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == before - 24
    storage.resize_(24)
    assert torch.cuda.memory_allocated() == before
    assert view.isnan().all()
    kept.copy_(torch.arange(6.0))
    assert view.tolist() == [2.0, 3.0]
    storage.resize_(32)
    assert view.tolist() == [2.0, 3.0]


def test_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match='same device'):
        _cuda(3) + torch.ones(3)
    with pytest.raises(RuntimeError, match='same device'):
        _cuda(3).index_select(0, torch.tensor([1]))
    with pytest.raises(TypeError, match='numpy'):
        _cuda(3).numpy()
    assert (_cuda(3) + torch.tensor(1.0)).is_cuda  # as of a number


def test_each_device_draws_for_itself() -> None:
    torch.manual_seed(1)
    drawn = torch.rand(3)
    torch.manual_seed(1)
    there = torch.rand(3, device='cuda')
    assert torch.equal(torch.rand(3), drawn)
    torch.cuda.manual_seed(1)
    assert torch.equal(torch.rand(3, device='cuda'), there)
    with pytest.raises(RuntimeError, match='generator'):
        torch.rand(3, device='cuda', generator=torch.Generator())
    generator = torch.Generator('cuda').manual_seed(1)
    assert torch.equal(torch.rand(3, device='cuda', generator=generator), there)


def test_products_with_a_sparse_matrix() -> None:
    ends, columns = torch.arange(4, device='cuda'), torch.arange(3, device='cuda')
    there = _pattern(ends, columns, torch.ones(3, device='cuda'), 3)
    x = _cuda(3, 2)
    assert torch.equal((there @ x).cpu(), x.cpu())
    parts = there.crow_indices(), there.col_indices(), there.values()
    again = there.crow_indices(), there.col_indices(), there.values()
    assert [part.data_ptr() for part in parts] == [part.data_ptr() for part in again]
    dots = torch.sparse.sampled_addmm(there, x, x.t(), beta=0.0)
    torch.testing.assert_close(dots.values().cpu(), (x * x).sum(1).cpu())


@pytest.mark.parametrize('form', ['integers', 'batch norm', 'sparse'])
def test_what_only_a_gpu_refuses(form: str) -> None:
    def run(device: str) -> None:
        if form == 'integers':
            whole = torch.ones(2, 2, dtype=torch.int64, device=device)
            whole @ whole
        elif form == 'batch norm':
            x, c = torch.ones(4, 2, device=device), torch.ones(2, device=device)
            norm = torch.ops.aten.native_batch_norm_backward
            norm(x, x, c, c, c, None, None, False, 1e-5, [True] * 3)
        else:
            ends, columns = (torch.tensor(each, device=device) for each in ([0, 3], [0, 1, 1]))
            matrix = _pattern(ends, columns, torch.ones(3, device=device), 2)
            matrix @ torch.ones(2, 1, device=device)

    run('cpu')
    with pytest.raises(RuntimeError):
        run('cuda')


@pytest.mark.parametrize('form', ['running sums', 'products', 'weighted counts'])
def test_what_only_a_gpu_does_in_any_order(form: str) -> None:
    def run(device: str, dtype: torch.dtype = torch.float64) -> None:
        x, index = torch.ones(3, dtype=dtype, device=device), torch.zeros(3, dtype=torch.int64)
        if form == 'running sums':
            x.cumsum(0)
        elif form == 'products':
            x.scatter_reduce(0, index.to(device), x, 'prod' if dtype.is_floating_point else 'amax')
        else:
            torch.bincount(index.to(device), x if dtype.is_floating_point else None)

    torch.use_deterministic_algorithms(True)
    try:
        run('cpu')
        run('cuda', torch.int64)
        with pytest.raises(RuntimeError, match='deterministic'):
            run('cuda')
    finally:
        torch.use_deterministic_algorithms(False)
    run('cuda')


def test_pinned_memory() -> None:
    pinned = torch.empty(4, pin_memory=True)
    assert pinned.is_pinned()
    assert pinned[1:].is_pinned()
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(4).is_pinned()
    there = torch.ones(4, device='cuda')
    assert pinned.copy_(there).tolist() == [1.0] * 4
    there.copy_(pinned.fill_(2.0), non_blocking=True)
    assert there.tolist() == [2.0] * 4


def test_tensors_are_cloned_saved_and_loaded() -> None:
    kept, file = torch.arange(4.0, device='cuda'), io.BytesIO()
    torch.save(kept, file)
    file.seek(0)
    for made in (copy.deepcopy(kept), torch.load(file)):
        assert made.is_cuda
        assert torch.equal(made, kept)
        assert made.data_ptr() != kept.data_ptr()


def test_storage_comes_to_the_host() -> None:
    kept = torch.arange(4.0, device='cuda')
    assert torch.tensor(kept.untyped_storage().cpu().tolist()).ne(0).sum() == 5  # bytes


# --- the group ------------------------------------------------------------------------------------


def _swap(rank: int, *, waits: bool = True, spoils: bool = False) -> list[float]:
    """What comes from the rank before."""
    sent, received = torch.full((4,), float(rank), device='cuda'), torch.zeros(4, device='cuda')
    size = dist.get_world_size()
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    works = dist.batch_isend_irecv([receive, dist.P2POp(dist.isend, sent, (rank + 1) % size)])
    if spoils:
        sent.fill_(7.0)
    found = received.clone()
    for work in works:
        work.wait()
    return (received if waits else found).tolist()


def _collectives() -> list[list[float]]:
    dist.all_reduce(torch.zeros(1, device='cuda'))
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = torch.empty(size, device='cuda')
    dist.all_to_all_single(rows, torch.arange(float(size), device='cuda') + 10 * rank)
    return [*_reduced_and_gathered(), rows.tolist(), _swap(rank)]


def _reduced_and_gathered() -> list[list[float]]:
    rank, gathered = dist.get_rank(), torch.empty(dist.get_world_size(), device='cuda')
    total = torch.full((2,), rank + 1.0, device='cuda')
    dist.all_reduce(total)
    dist.all_gather(list(gathered.unbind()), torch.tensor(float(rank), device='cuda'))
    return [total.tolist(), gathered.tolist()]


def test_collectives() -> None:
    for rank, found in enumerate(run_ranks(_collectives, 3, backend='nccl')):
        rows = [10.0 * other + rank for other in range(3)]
        assert found == [[6.0, 6.0], [0.0, 1.0, 2.0], rows, [(rank - 1.0) % 3] * 4]


def _misused() -> list[list[float]]:
    dist.all_reduce(torch.zeros(1, device='cuda'))
    rank = dist.get_rank()
    return [_swap(rank, waits=False), _swap(rank, spoils=True)]


def test_what_is_not_waited_for_is_garbage() -> None:
    for early, spoilt in run_ranks(_misused, 3, backend=NCCL):
        assert all(value != value for value in early)
        assert spoilt == [7.0] * 4


def _refused() -> list[str]:
    dist.all_reduce(torch.zeros(1, device='cuda'))
    refused = torch.ones(3), torch.ones(4, 2).t().to('cuda'), torch.ones(3).short().to('cuda')
    return [attempt(dist.all_reduce, tensor) for tensor in refused]


def _by_gloo() -> list[list[float]]:
    """gloo copies what it reduces and gathers; what it sends it takes for memory of the host."""
    with pytest.raises(AssertionError, match='Segmentation fault'):
        _swap(dist.get_rank())
    return _reduced_and_gathered()


def test_a_device_and_gloo_alone() -> None:
    assert run_ranks(_by_gloo, 2) == [[[3.0, 3.0], [0.0, 1.0]]] * 2


def test_what_nccl_refuses() -> None:
    for said in run_ranks(_refused, 2, backend='nccl'):
        for words, error in zip(('cpu', 'contiguous', 'not supported'), said, strict=True):
            assert words in error
