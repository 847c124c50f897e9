"""What Python and torch do with a tensor beside computing: it stays rows, or is refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from names_calls import MAKERS
from on_ranks import on_threads
from ranks import run_as_threads
from some_rows import N, X, rows
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import pyg_sar
from pyg_sar.rows.rows import Rows


class Holder(torch.nn.Module):
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.register_buffer('x', x)

    def forward(self, x: Any) -> Any:
        return (2 * x).mean(0)


def _data_of(x: Any) -> Any:
    x.data = x.data + 0
    return x


KEEPS: dict[str, Callable[[Any], Any]] = {
    **{
        name: MAKERS[name]
        for name in ('torch.as_tensor', 'torch.as_tensor dtype', 'copy.copy', 'copy.deepcopy')
    },
    'x.data': lambda x: x.data,
    'x.data = y': _data_of,
    'x.type(dtype)': lambda x: x.type(torch.float64),
    'Parameter': lambda x: torch.nn.Parameter(x).detach(),
    'register_buffer': lambda x: Holder(x).x,
    'state_dict': lambda x: Holder(x).state_dict()['x'],
    'a module to another dtype': lambda x: Holder(x).double().x,
    'deepcopy of a module': lambda x: copy.deepcopy(Holder(x)).x,
    'torch.ops': lambda x: torch.ops.aten.mul(x, 1),
}

WHOLE: dict[str, Callable[[Any], Any]] = {
    'DataLoader': lambda x: torch.cat(list(DataLoader(x, batch_size=3))),
    'TensorDataset': lambda x: torch.cat(
        [b for (b,) in DataLoader(TensorDataset(x), batch_size=4)]
    ),
    'random_split': lambda x: torch.stack(
        list(torch.utils.data.random_split(x, [10, 0], torch.Generator().manual_seed(0))[0])
    ),
    'float of a number': lambda x: torch.tensor(float(x[3, 1])),
    'torch.tensor of a number': lambda x: torch.tensor([x[3, 1], x[0, 0]]),
    'fx': lambda x: torch.fx.symbolic_trace(Holder(torch.ones(1)))(x),
    'parameters_to_vector': lambda x: torch.nn.utils.parameters_to_vector([x.relu()]).mean(),
    'default_collate': lambda x: torch.utils.data.default_collate([x, x]).sum(1),
    'jacobian': lambda x: torch.autograd.functional.jacobian(lambda a: a.square().sum(0), x),
    'vjp': lambda x: torch.autograd.functional.vjp(lambda a: a.square().sum(0), x, X[0])[1],
    'type': lambda x: torch.tensor(x.type() == 'torch.DoubleTensor'),
    'a number of NumPy': lambda x: (np.float64(2) * x).sum(0),
    'plain += rows': lambda x: torch.zeros(N, 4, dtype=x.dtype).add_(x),
    'torch.sparse_coo_tensor': lambda x: torch.sparse_coo_tensor(
        torch.arange(N).repeat(2, 1), x[:, 0], (N, N), check_invariants=True
    ).to_dense(),
    'torch.sparse_compressed_tensor': lambda x: torch.sparse_compressed_tensor(
        torch.arange(N + 1),
        torch.arange(N),
        x[:, 0],
        layout=torch.sparse_csr,
        check_invariants=True,
    ).to_dense(),
    'torch.sparse_csr_tensor': lambda x: torch.sparse_csr_tensor(
        torch.arange(N + 1), torch.arange(N), x[:, 0], check_invariants=True
    ).to_dense(),
}

_REFUSED = """
    torch.asarray; torch.tensor; torch.tensor(data=); torch.Tensor; torch.autograd.Variable;
    plain.new; plain.new_tensor; plain.data =; pickle; torch.save; plain.set_;
    torch.nested.nested_tensor; torch.utils.dlpack.to_dlpack; torch.jit.script; torch.vmap;
    torch.func.grad; register_multi_grad_hook; torch.func.vjp; torch.from_dlpack;
    np.from_dlpack; np.asarray; np.array; np.add; list; sum; [*t]; reversed; in;
    torch.tensor [t]; torch.func.jvp; torch.nested.as_nested_tensor; multiprocessing
"""
REFUSED: dict[str, Callable[[Any], Any]] = {
    **{name.strip(): MAKERS[name.strip()] for name in _REFUSED.split(';')},
    'x.new': lambda x: x.new(x),
    'torch.DoubleTensor': torch.DoubleTensor,
    'torch.sparse.DoubleTensor': lambda x: torch.sparse.DoubleTensor(
        torch.arange(N).repeat(2, 1), x[:, 0], torch.Size([N, N])
    ),
    'x.real = y': lambda x: setattr(x, 'real', X),
    'plain.real = x': lambda x: setattr(X.clone(), 'real', x),
    'save of a state_dict': lambda x: torch.save(Holder(x).state_dict(), io.BytesIO()),
    'untyped_storage': lambda x: x.untyped_storage(),
    'storage': lambda x: x.storage(),
    'data_ptr': lambda x: x.data_ptr(),
    'share_memory_': lambda x: x.share_memory_(),
    'as_subclass': lambda x: x.as_subclass(Tensor),
    'set_': lambda x: x.set_(X),
    'numpy': lambda x: x.numpy(force=True),
    'tolist': lambda x: x.tolist(),
    'float of rows': lambda x: float(x[:, 0]),
    'bool of rows': lambda x: bool((x > 0).all(1)),
    'x.new_tensor': lambda x: x.new_tensor(x),
    'a script module': lambda x: torch.jit.script(torch.nn.Linear(4, 2).double())(x),
    'torch.jit.trace': lambda x: torch.jit.trace(lambda a: (2 * a).sum(0), (x,)),
    'rows inside of vmap': lambda x: torch.vmap(lambda w: x @ w)(torch.ones(3, 4, 2).double()),
    'rows inside of torch.func.grad': lambda x: torch.func.grad(lambda w: (x @ w).sum())(X[0]),
    'to_sparse': lambda x: x.to_sparse(),
}

REFUSED_BY_TORCH: dict[str, Callable[[Any], Any]] = {
    'torch.from_numpy': torch.from_numpy,
    'memoryview': memoryview,
    'torch.frombuffer': lambda x: torch.frombuffer(x, dtype=torch.float64),
    'array + rows': lambda x: np.ones((N, 4)) + x,
    'plain.grad = rows': lambda x: setattr(X.clone().requires_grad_(), 'grad', x),
    'torch.func.jacrev': lambda x: torch.func.jacrev(lambda a: a.sum(0))(x),
}


@pytest.mark.filterwarnings('ignore:To copy construct')
@pytest.mark.parametrize('name', KEEPS)
@on_threads(3)
def test_stays_rows(name: str) -> None:
    x = rows()
    out = KEEPS[name](x)
    assert type(out) is Rows or isinstance(out, torch.nn.Parameter)
    assert torch.equal(pyg_sar.gather(out), X)
    assert out._sharding is x._sharding


@pytest.mark.filterwarnings('ignore:torch.sparse.SparseTensor', 'ignore:Sparse CSR tensor support')
@pytest.mark.parametrize('name', WHOLE)
@pytest.mark.parametrize('world_size', [1, 3])
@on_threads(3)
def test_is_that_of_the_whole(name: str, world_size: int) -> None:
    out = pyg_sar.gather(WHOLE[name](rows()))
    assert type(out) is Tensor
    torch.testing.assert_close(out, pyg_sar.gather(WHOLE[name](X)), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', REFUSED)
@on_threads(3)
def test_is_refused(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r'spread over the ranks|pyg_sar\.gather'):
        REFUSED[name](rows())


@pytest.mark.parametrize('name', REFUSED_BY_TORCH)
@on_threads(3)
def test_is_refused_by_torch_or_python(name: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        REFUSED_BY_TORCH[name](rows())


@on_threads(3)
def test_a_copy_shares_its_memory() -> None:
    x = rows().requires_grad_()
    other = copy.copy(x)
    assert other.requires_grad
    with torch.no_grad():
        other.add_(1)
    assert torch.equal(pyg_sar.gather(x.detach()), X + 1)
    ids = copy.copy(rows(torch.arange(N)))
    assert torch.equal(pyg_sar.gather(rows()[ids]), X)


@on_threads(2)
def test_workers_of_a_data_loader_hold_no_ranks() -> None:
    x, ids = rows(), torch.tensor([1, 0])
    in_worker = patch('os.getpid', return_value=-1)  # a forked process
    with in_worker, pytest.raises(ValueError, match='in a worker of a DataLoader'):
        x[ids]


def _metric() -> float:
    torchmetrics = pytest.importorskip('torchmetrics')
    metric = torchmetrics.MeanSquaredError()
    x = rows()
    metric.update(pyg_sar.gather(x), pyg_sar.gather(0 * x))
    with pytest.raises(ValueError, match=r'spread over the ranks|pyg_sar\.gather'):
        metric.update(x.tolist(), x)
    return float(metric.compute())


def test_a_metric_takes_gathered_rows() -> None:
    pytest.importorskip('torchmetrics')
    assert run_as_threads(_metric, 3) == [pytest.approx(float(X.square().mean()))] * 3
