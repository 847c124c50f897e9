"""Linear layers by oneDNN: the numbers, the gradients, and what stays torch's."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from copied_modules import copied
from on_ranks import on_ranks
from torch.autograd import forward_ad
from torch_geometric.nn import Linear

from pyg_sar import DistributedDataParallel
from pyg_sar.ops import linear as by_onednn
from pyg_sar.rows.rows import plain

NUM_ROWS, IN, OUT = 6003, 96, 40  # not a multiple of the images of a weight's gradient


@pytest.fixture(autouse=True)
def on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where it is faster."""
    if by_onednn._product is None:
        pytest.skip('this torch is without oneDNN')
    monkeypatch.setattr(by_onednn, 'is_faster', lambda: True)


def _made() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = (NUM_ROWS, IN), (OUT, IN), (OUT,)
    return tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in shapes)


def _is_used(out: torch.Tensor) -> bool:
    return type(out.grad_fn).__name__ == '_LinearBackward'


def _assert_close_to_float64(
    out: torch.Tensor, layer: Callable[..., torch.Tensor], *leaves: torch.Tensor
) -> None:
    """Numbers and gradients of a layer of float32 leaves."""
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in leaves]
    want = layer(*exact)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
    if not out.requires_grad:
        return
    grad = torch.randn(want.shape, generator=torch.Generator().manual_seed(1))
    out.backward(grad)
    want.backward(grad.double())
    for own, other in zip(leaves, exact, strict=True):
        assert (own.grad is None) == (other.grad is None)
        if own.grad is not None:
            found, right = (t.grad.double() / other.grad.abs().max() for t in (own, other))
            torch.testing.assert_close(found, right, rtol=0, atol=2e-6)


@pytest.mark.parametrize('needs', [(1, 1, 1), (0, 1, 1), (1, 0, 0), (0, 0, 1)])
@pytest.mark.parametrize('has_bias', [True, False])
def test_numbers_are_those_of_float64(needs, has_bias):
    leaves = [t.detach().requires_grad_(bool(need)) for t, need in zip(_made(), needs, strict=True)]
    leaves = leaves if has_bias else leaves[:2]
    out = by_onednn.linear(*leaves)
    assert _is_used(out) == out.requires_grad
    _assert_close_to_float64(out, F.linear, *leaves)


@pytest.mark.parametrize('num_dims', [2, 3])
def test_products_with_a_matrix(num_dims):
    x, weight, _ = _made()
    x = x.detach()[: NUM_ROWS // 2 * 2].view(-1, *[2] * (num_dims - 2), IN).requires_grad_()
    matrix = weight.detach().t().contiguous().requires_grad_()
    out = by_onednn.linear(x, matrix.t())
    assert _is_used(out if num_dims == 2 else out._base)
    _assert_close_to_float64(out, torch.matmul, x, matrix)
    assert x.grad.shape == x.shape


def test_more_dimensions_and_gradients_that_are_no_rows_in_memory():
    x, weight, bias = _made()
    stacked = torch.stack([x, x.sin()])
    out = by_onednn.linear(stacked, weight, bias)
    assert out.shape == (2, NUM_ROWS, OUT)
    out.sum().backward()  # its gradient is one number, expanded
    want = torch.autograd.grad(F.linear(stacked, weight, bias).sum(), weight)[0]
    torch.testing.assert_close(weight.grad, want, rtol=1e-4, atol=1e-2)


def test_the_same_bits_again():
    def run() -> list[torch.Tensor]:
        leaves = _made()
        out = by_onednn.linear(*leaves)
        out.square().sum().backward()
        return [out, *(t.grad for t in leaves)]

    assert all(map(torch.equal, run(), run()))


def test_second_derivatives():
    x, weight, bias = (t.detach()[..., :IN].requires_grad_() for t in _made())

    def penalty(layer: object) -> torch.Tensor:
        out = layer(x, weight, bias).tanh()
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), weight)[0]

    torch.testing.assert_close(penalty(by_onednn.linear), penalty(F.linear), rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings('ignore:TF32 acceleration')
def test_what_stays_with_torch():
    x, weight, bias = _made()
    assert not _is_used(by_onednn.linear(x.double(), weight.double(), bias.double()))
    assert not _is_used(by_onednn.linear(x[:9], weight, bias))
    assert not _is_used(by_onednn.linear(x, weight[:2], bias[:2]))
    assert not _is_used(by_onednn.linear(x.t().contiguous().t(), weight, bias))
    with torch.autocast('cpu', torch.bfloat16):
        assert by_onednn.linear(x, weight, bias).dtype == torch.bfloat16
    with torch.backends.mkldnn.flags(enabled=False):
        assert not _is_used(by_onednn.linear(x, weight, bias))
    with pytest.raises(RuntimeError, match='shapes cannot be multiplied'):
        by_onednn.linear(x[:, 1:].contiguous(), weight, bias)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        tangent = forward_ad.unpack_dual(by_onednn.linear(dual, weight, bias)).tangent
    torch.testing.assert_close(tangent, F.linear(torch.ones_like(x), weight), rtol=1e-4, atol=1e-3)
    mapped = torch.vmap(lambda rows: by_onednn.linear(rows, weight, bias))(x.detach().unsqueeze(1))
    torch.testing.assert_close(mapped[:, 0], F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)


def _net() -> torch.nn.Module:
    layers = {'first': torch.nn.Linear(IN, OUT), 'relu': torch.nn.ReLU(), 'last': Linear(OUT, 64)}
    return torch.nn.Sequential(OrderedDict(layers))


def test_layers_of_a_wrapped_model_alone():
    x, *_ = _made()
    torch.manual_seed(0)
    plain = _net()
    model = DistributedDataParallel(copy.deepcopy(plain))
    assert type(model.first) is torch.nn.Linear
    assert type(model.last) is Linear
    assert _is_used(model(x))
    assert not _is_used(plain(x))
    assert not _is_used(torch.nn.Linear(IN, OUT)(x))
    for cls in (torch.nn.Linear, Linear):
        assert cls.forward.__module__ == cls.__module__
        assert cls.forward.__code__.co_filename != by_onednn.__file__
    torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)
    with mock.patch.object(torch.nn.Linear, 'forward', lambda _, x: x[:, :OUT]):
        assert torch.equal(model(x), model.last(x[:, :OUT].relu()))
    for other in (copied(model, way) for way in ('deepcopy', 'torch.save')):
        assert _is_used(other.first(x))
        assert _is_used(other.last(other.first(x)))
        with torch.no_grad():
            other.first.weight.zero_()
        assert not torch.equal(other.first(x), model.first(x))


def test_compilers_take_the_plain_layer():
    x, *_ = _made()
    model = DistributedDataParallel(_net())
    scripted = torch.jit.script(torch.nn.Linear(IN, OUT))
    assert scripted(x).shape == (NUM_ROWS, OUT)
    assert 'onednn' not in scripted.code
    assert torch.jit.script(model.first)(x).shape == (NUM_ROWS, OUT)
    compiled = torch.compile(model.first, fullgraph=True, backend='eager')
    torch.testing.assert_close(compiled(x), model.first(x), rtol=1e-4, atol=1e-4)


@on_ranks(2, by='threads')
def test_rows(data):
    torch.manual_seed(0)
    wide = torch.cat([data.x.float()] * 200, dim=1).requires_grad_()  # 13 rows are enough then
    weight = torch.randn(600, wide.size(1), requires_grad=True)
    out = F.linear(wide, weight)
    assert '_LinearBackward' in str(plain(out).grad_fn.next_functions) + str(plain(out).grad_fn)
    product = wide @ weight.t()
    for other in (product, wide.matmul(weight.t()), torch.matmul(wide, weight.t())):
        history = plain(other).grad_fn
        assert '_LinearBackward' in f'{history} {history.next_functions}'
        torch.testing.assert_close(plain(out), plain(other), rtol=1e-4, atol=1e-2)
    (grad,) = torch.autograd.grad(product.square().mean(), weight)
    (want,) = torch.autograd.grad(out.square().mean(), weight)
    torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-4)
