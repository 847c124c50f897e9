"""What rows are: their memory, their gradients, and what leaves them.

What Python and torch do with a tensor beside computing: it stays rows, or is refused.
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from expressions import expressions
from names_calls import diagonal, made
from on_ranks import on_threads
from ranks import run_as_threads
from some_rows import N, X, rows
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import Rows, same_plain


class Holder(torch.nn.Module):
    def __init__(self, x: Any) -> None:
        super().__init__()
        self.register_buffer('x', x)

    def forward(self, x: Any) -> Any:
        return (2 * x).mean(0)


def with_own_data(x: Any) -> Any:
    x.data = x.data + 0
    return x


KEEPS = """
torch.as_tensor(x); torch.as_tensor(x, dtype=torch.float64); copy.copy(x); copy.deepcopy(x); x.data
with_own_data(x); x.type(torch.float64); torch.nn.Parameter(x).detach(); Holder(x).x
Holder(x).state_dict()['x']; Holder(x).double().x; copy.deepcopy(Holder(x)).x
torch.ops.aten.mul(x, 1)
"""
WHOLE = """
torch.cat(list(DataLoader(x, batch_size=3))); torch.tensor(float(x[3, 1]))
torch.cat([b for (b,) in DataLoader(TensorDataset(x), batch_size=4)])
torch.stack(list(random_split(x, [10, 0], torch.Generator().manual_seed(0))[0]))
torch.tensor([x[3, 1], x[0, 0]]); torch.fx.symbolic_trace(Holder(torch.ones(1)))(x)
torch.nn.utils.parameters_to_vector([x.relu()]).mean()
torch.utils.data.default_collate([x, x]).sum(1)
torch.autograd.functional.jacobian(lambda a: a.square().sum(0), x)
torch.autograd.functional.vjp(lambda a: a.square().sum(0), x, X[0])[1]
torch.tensor(x.type() == 'torch.DoubleTensor'); (np.float64(2) * x).sum(0)
torch.zeros(N, 4, dtype=x.dtype).add_(x); np.add(x, 1); torch.as_tensor(np.asarray(x, 'f4'))
torch.tensor(np.array(x)); torch.tensor(x.numpy(force=True)); torch.tensor(x.tolist()); sum(x)
x.to_sparse().to_dense(); torch.stack(list(x)); torch.stack([*x.t()], 1)
torch.stack([*reversed(x)])
torch.sparse_coo_tensor(diagonal(N), x[:, 0], (N, N), **checked).to_dense()
torch.sparse_compressed_tensor(*csr(), x[:, 0], layout=torch.sparse_csr, **checked).to_dense()
torch.sparse_csr_tensor(*csr(), x[:, 0], **checked).to_dense()
"""
REFUSED = """
x.new(x); torch.DoubleTensor(x); setattr(x, 'real', X); setattr(X.clone(), 'real', x)
torch.sparse.DoubleTensor(diagonal(N), x[:, 0], torch.Size([N, N])); x.untyped_storage()
torch.save(Holder(x).state_dict(), io.BytesIO()); x.storage(); x.data_ptr(); x.share_memory_()
x.as_subclass(Tensor); x.set_(X); float(x[:, 0])
bool((x > 0).all(1)); x.new_tensor(x); torch.jit.script(torch.nn.Linear(4, 2).double())(x)
torch.jit.trace(lambda a: (2 * a).sum(0), (x,))
torch.vmap(lambda w: x @ w)(torch.ones(3, 4, 2).double())
torch.func.grad(lambda w: (x @ w).sum())(X[0])
"""
REFUSED_MAKERS = """
torch.asarray(t); torch.tensor(t); torch.tensor(data=t); torch.Tensor(t); in_data(t); saved(t)
torch.autograd.Variable(t); torch.zeros(1, dtype=t.dtype).new(t); torch.zeros(1).new_tensor(t)
pickle.loads(pickle.dumps(t)); torch.zeros(1, dtype=t.dtype).set_(t); torch.from_dlpack(t)
torch.nested.nested_tensor([t]); torch.utils.dlpack.to_dlpack(t); doubled(t)
torch.vmap(lambda a: 2 * a)(t); torch.func.grad(loss_of)(t); multi_grad_hook(t)
torch.func.vjp(loss_of, t)[0]; np.from_dlpack(t)
torch.tensor([t, t]); torch.func.jvp(loss_of, (t,), (t,))
torch.nested.as_nested_tensor([t]); torch.multiprocessing.reductions.reduce_tensor(t)
"""
REFUSED_BY_TORCH = """
torch.from_numpy(x); memoryview(x); torch.frombuffer(x, dtype=torch.float64); np.ones((N, 4)) + x
setattr(X.clone().requires_grad_(), 'grad', x); torch.func.jacrev(lambda a: a.sum(0))(x)
"""

checked = {'check_invariants': True}
NAMES = {'copy': copy, 'diagonal': diagonal, 'io': io, 'np': np}


def csr() -> tuple[Tensor, Tensor]:
    return torch.arange(N + 1), torch.arange(N)


def _value(expression: str, x: Any) -> Any:
    return eval(expression, vars(torch.utils.data) | globals() | NAMES | {'x': x})


@pytest.mark.filterwarnings('ignore:To copy construct')
@on_threads(3)
def test_stays_rows() -> None:
    for expression in expressions(KEEPS):
        x = rows()
        out = _value(expression, x)
        assert type(out) is Rows or isinstance(out, torch.nn.Parameter), expression
        assert torch.equal(pyg_sar.gather(out), X), expression
        assert out._sharding is x._sharding, expression


@pytest.mark.filterwarnings('ignore:torch.sparse.SparseTensor', 'ignore:Sparse CSR tensor support')
@pytest.mark.filterwarnings('ignore:__array')
@pytest.mark.parametrize('world_size', [1, 3])
@on_threads(3)
def test_is_that_of_the_whole(world_size: int) -> None:
    for expression in expressions(WHOLE):
        out = pyg_sar.gather(_value(expression, rows()))
        want = pyg_sar.gather(_value(expression, X))
        assert type(out) is Tensor, expression
        torch.testing.assert_close(out, want, rtol=1e-12, atol=1e-12, msg=expression)


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', expressions(REFUSED) + expressions(REFUSED_MAKERS))
@on_threads(3)
def test_is_refused(name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=r'spread over the ranks|pyg_sar\.gather'):
        made(name, rows()) if name in REFUSED_MAKERS else _value(name, rows())


@pytest.mark.parametrize('name', expressions(REFUSED_BY_TORCH))
@on_threads(3)
def test_is_refused_by_torch_or_python(name: str) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        _value(name, rows())


@on_threads(3)
def test_a_copy_shares_its_memory() -> None:
    x = rows().requires_grad_()
    with pytest.raises(TypeError, match='save_rows'):
        pickle.dumps(x)
    assert copy.deepcopy(x).requires_grad
    other = copy.copy(x)
    assert other.requires_grad
    with torch.no_grad():
        other.add_(1)
    assert torch.equal(pyg_sar.gather(x.detach()), X + 1)
    ids = copy.copy(rows(torch.arange(N)))
    assert torch.equal(pyg_sar.gather(rows()[ids]), X)


@on_threads(3)
def test_an_array_is_read_only_and_stays_as_it_is() -> None:
    """NumPy's array of a tensor is a view of it."""
    x = rows()
    array = x.detach().cpu().numpy()
    with pytest.raises(ValueError, match='read-only'):
        array[0] = 0
    part = array[1:, 2]
    del array
    with pytest.raises(ValueError, match=r'an array was read before.*x\.numpy\(\)\.copy'):
        x.add_(1)
    del part
    copied = x.numpy().copy()
    copied[0] = 0
    x.add_(1)
    assert np.array_equal(x.numpy(), X.numpy() + 1)


@on_threads(2)
def test_workers_of_a_data_loader_hold_no_ranks() -> None:
    x, ids = rows(), torch.tensor([1, 0])
    in_worker = patch('os.getpid', return_value=-1)  # a forked process
    with in_worker, pytest.raises(ValueError, match='in a worker of a DataLoader'):
        x[ids]


@on_threads(3)
def test_a_metric_takes_gathered_rows() -> None:
    metric = pytest.importorskip('torchmetrics').MeanSquaredError()
    x = rows()
    metric.update(pyg_sar.gather(x), pyg_sar.gather(0 * x))
    with pytest.raises(ValueError, match=r'spread over the ranks|pyg_sar\.gather'):
        metric.update(x.tolist(), x)
    assert float(metric.compute()) == pytest.approx(float(X.square().mean()))


@on_threads(3)
def test_the_plain_tensor_of_rows_is_known_by_them() -> None:
    x = rows()
    plain = same_plain(x)
    assert same_plain(x) is plain
    x.add_(1)
    assert torch.equal(plain, pyg_sar.local(x))
    x.data = torch.ones_like(x)
    assert (same_plain(x) == 1).all()
    refs = weakref.ref(x), weakref.ref(plain)
    del x, plain
    gc.disable()  # no cycle holds the memory
    assert [each() for each in refs] == [None, None]
    gc.enable()


def _gradients(make: Callable[[], Any]) -> dict[str, Tensor]:
    """Of rows, of a weight, and what hooks see and make of them."""
    x, hooked = make().requires_grad_(), make().requires_grad_()
    weight = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
    seen: list[Any] = []
    y = x @ weight
    y.register_hook(seen.append)
    y.retain_grad()
    hooked.register_hook(lambda grad: seen.append(grad) or 2 * grad)  # type: ignore[func-returns-value]
    hooked.square().sum().backward()
    ((y - y.mean(0)).square().mean() + weight.square().sum()).backward()
    assert all(type(each) is type(x) for each in seen)
    (again,) = torch.autograd.grad((x @ weight).square().sum(), x)
    found = {'x': x.grad, 'weight': weight.grad, 'y': y.grad, 'hooked': hooked.grad, 'again': again}
    found |= {f'seen {i}': each for i, each in enumerate(seen)}
    return {name: pyg_sar.gather(value) for name, value in found.items()}


def test_gradients_are_those_of_one_process() -> None:
    expected = _gradients(X.clone)
    for found in run_as_threads(_gradients, 3, rows):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@on_threads(3)
def test_a_plain_tensor_is_one_of_the_whole() -> None:
    x = rows()
    with pytest.raises(ValueError, match="one value on all ranks in 'add' of rows at"):
        x + torch.full((N, 4), float(rank()))
    with pytest.raises(ValueError, match='all 10 rows'):
        x + torch.ones(pyg_sar.local(x).shape)


@on_threads(3)
def test_what_leaves_says_so() -> None:
    x = rows()
    for leave in (lambda: float(x[:, 0].exp()), lambda: bool(x)):
        with pytest.raises(ValueError, match=r'rows of this rank alone: write '):
            leave()
    assert torch.equal(pyg_sar.gather(x), X)
    assert x.shape == X.shape
    assert len(x) == N
