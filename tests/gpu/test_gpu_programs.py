"""What users write around a model on a device; on a CPU all of it works, or cannot happen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_ranks import parts_of
from ranks import run_ranks
from setups import BACKENDS
from small_graphs import attempt
from torch import Tensor
from torch_geometric.nn import GraphSAGE

import pyg_sar
from pyg_sar.comm.ranks import rank

pytestmark = pytest.mark.cuda_sim
PAIRS = torch.tensor([[0, 5, 9], [3, 2, 1]])

Loss = Callable[[Tensor, Any], Tensor]


def _losses(root: str, loss_of: Loss, data_on: str = 'cuda') -> list[float]:
    data = pyg_sar.load_shard(root).to(data_on)
    torch.manual_seed(0)
    net = GraphSAGE(6, 8, 2, 3, norm='batch_norm').double().to(data_on)
    model = pyg_sar.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(data.x, data.edge_index), data)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _plain(out: Tensor, data: Any) -> Tensor:
    return F.cross_entropy(out[data.train_mask], data.y[data.train_mask])


def _mask_on_the_host(out: Tensor, data: Any) -> Tensor:
    mask = data.train_mask.cpu()
    return F.cross_entropy(out[mask], data.y[mask])


def _on_the_host(out: Tensor, data: Any) -> Tensor:
    return _plain(out.cpu(), data.clone().cpu())


def _compiled(out: Tensor, data: Any) -> Tensor:
    loss: Tensor = torch.compile(_plain, backend='eager')(out.clone(), data)
    return loss


def _pairs(out: Tensor, data: Any, pairs: Tensor = PAIRS) -> Tensor:
    """Ids that were read from a file are on the host."""
    first, second = out[pairs]
    return (first - second).square().sum()


@pytest.mark.filterwarnings('ignore:The .grad attribute of a Tensor')  # torch.compile looks at it
@pytest.mark.filterwarnings('ignore:torch.compile leaves functions')
@pytest.mark.parametrize('loss_of', [_mask_on_the_host, _on_the_host, _compiled, _pairs])
def test_a_loss(loss_of: Loss) -> None:
    want = run_ranks(_losses, 2, str(parts_of(2)), _pairs if loss_of is _pairs else _plain, 'cpu')
    found = run_ranks(_losses, 2, str(parts_of(2)), loss_of, backend=BACKENDS[1])
    assert found == [pytest.approx(each, abs=1e-12) for each in want]


def _mixed(root: str) -> str:
    device = 'cuda' if rank() else 'cpu'
    return attempt(_losses, root, _plain, device)


@pytest.mark.parametrize('backend', [*BACKENDS, 'gloo'])
def test_a_rank_that_found_no_device_is_refused(backend: str) -> None:
    """It would wait for the others by gloo, and they for it by NCCL."""
    for said in run_ranks(_mixed, 2, str(parts_of(2)), backend=backend):
        words = 'expected the same model on all ranks: .*, on cuda on rank 1 .got .* on rank 0.'
        assert re.match(f'ValueError: {words}', said), said


def _parts_in_step(root: str, wrong: int) -> tuple[int, str]:
    data = pyg_sar.load_shard(root).to('cuda')
    torch.manual_seed(0)
    model = pyg_sar.DistributedDataParallel(GraphSAGE(6, 8, 2, 3).double().to('cuda'))
    for step in range(5):
        factor = torch.tensor(1.0 + (rank() if step == wrong else 0), device='cuda')
        try:
            _plain(model(data.x * factor, data.edge_index), data).backward()
        except ValueError as error:
            return step, str(error)
    return 5, ''


@pytest.mark.parametrize('wrong', [0, 2])
def test_tensors_of_devices_that_differ_between_ranks(wrong: int) -> None:
    """No step waits for the device to compare them: with the gradients they are on the host."""
    for step, said in run_ranks(_parts_in_step, 2, str(parts_of(2)), wrong, backend=BACKENDS[0]):
        assert step in (wrong, wrong + 1), step
        assert "expected one value on all ranks in 'mul' of rows at test_gpu_programs" in said, said


def _rows_of_batches() -> list[float]:
    own = torch.arange(1 + 2 * rank(), dtype=torch.float64, device='cuda')
    found = pyg_sar.loader.gather_batches(own)
    assert found.device == own.device
    return found.tolist()


@pytest.mark.parametrize('backend', [*BACKENDS, 'gloo'])
def test_rows_of_all_batches(backend: str) -> None:
    assert run_ranks(_rows_of_batches, 2, backend=backend) == 2 * [[0.0, 0.0, 1.0, 2.0]]
