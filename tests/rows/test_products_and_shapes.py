"""Products and other shapes of rows on three ranks against those of the whole, with gradients."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from alike import assert_alike, gradient
from expressions import expressions
from on_ranks import on_threads
from op_run import Case, Verdict, verdict_of, whole_of
from ranks import run_as_threads
from torch import Tensor
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.comm.ranks import rank
from pyg_sar.comm.vote import agree
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.shapes import sharding_of_size
from pyg_sar.rows.sharding import Sharding

ROW_BY_ROW = """
x @ y.t() | [2,3] [7,3]@0; torch.Tensor.__rmatmul__(y, x) | [2,3] [3,7]@1; x @ y | [7,3]@0 [4,3,2]
torch.bmm(x, y) | [7,2,3]@0 [7,3,2]; x @ y | [7,2,3]@0 [1,3,2]; x @ y | [1,3]@0 [3,2]
F.linear(x, y, z) | [4,7,3]@1 [2,3] [2]; F.linear(x, y, z) | [4,3] [7,3]@0 [7]
F.bilinear(x, y, z, w) | [7,3]@0 [7,2]@0 [4,3,2] [4]
torch.addmm(x, y, z, beta=0.5, alpha=2) | [7,2]@0 [7,3] [3,2]
torch.einsum('nhd,hde->nhe', x, y) | [7,2,3]@0 [2,3,4]; torch.einsum('nd,de', x, y) | [7,3]@0 [3,2]
torch.einsum('...d,de->e...', x, y) | [2,7,3]@1 [3,2]
"""
OVER_THE_ROWS = """
x.t() @ x | [7,3]@0; x.t() @ y | [7,3]@0 [7,2]@0; x.t() @ y | [7,3]@0 [7,2]
x.t() @ y | [1,3]@0 [1,2]@0; torch.mv(x, y) | [2,7] [7]@0; torch.dot(x, y) | [7]@0 [7]@0
F.linear(x, y, z) | [3,7]@1 [2,7] [2]; F.bilinear(x, y, z, w) | [4,7]@1 [4,3] [2,7,3] [2]
torch.addmm(x, y.t(), z) | [2] [7,3]@0 [7,2]@0
torch.einsum('nhm,nhd->hmd', x, y) | [7,2,3]@0 [7,2,4]@0
torch.einsum('nd,ne', x, y) | [7,3]@0 [7,2]; torch.einsum('nd->d', x) | [7,3]@0
"""
ALL_PAIRS = """
x @ y.t() | [7,3]@0 [7,3]@0; x @ y | [2,7,3]@1 [2,3,7]@2; torch.mm(x, y) | [7,7]@0 [7,7]@0
torch.cdist(x, y) | [7,3]@0 [7,3]@0; torch.einsum('nd,md->nm', x, y) | [7,3]@0 [7,3]@0
torch.einsum('nm,mf->nf', x, y) | [7,7]@0 [7,3]@0; torch.einsum('nm,mf->mf', x, y) | [7,7]@0 [7,3]@0
torch.einsum('nf,mf,md->nd', x, y, z) | [7,3]@0 [7,3]@0 [7,2]@0
F.linear(x, y) | [7,3]@0 [7,3]@0; F.linear(x, y, z) | [7,3]@0 [7,3]@0 [7]
torch.outer(x, y) | [7]@0 [7]@0; x[:, None] - y[None] | [7,3]@0 [7,3]@0; torch.diag(x) | [7]@0
x / x.sum(1) + x.t() | [7,7]@0; x.sum(0) - y * x | [7,7]@0 [7]@0; x.clone().add_(x.t()) | [7,7]@0
torch.cat([x, x.t()], 1) | [7,7]@0; torch.cat([x.t(), y]) | [7,3]@0 [7,7]@0
torch.cat([x, x.t()]) | [7,7]@0
torch.stack([x, y]) | [7,7]@0 [7,7]@1
torch.diagonal(x) | [7,7]@0; x.t().diag() | [7,7]@0; x.clone().fill_diagonal_(2) | [7,7]@0
x[:, (y > 0).long()] | [7,7]@0 [7]@0; x.repeat(2, 1) | [7,2]@0
F.scaled_dot_product_attention(x, y, y, is_causal=True) | [2,7,3]@1 [2,7,3]@1
F.scaled_dot_product_attention(x, y, y, z) | [2,7,3]@1 [2,7,3]@1 [7,7]
F.scaled_dot_product_attention(x, y, y, z) | [7,3]@0 [7,3]@0 [7,7]@0
F.scaled_dot_product_attention(x, y, y, z.t()) | [7,3]@0 [7,3]@0 [7,7]@0
F.scaled_dot_product_attention(x, y, y, is_causal=True) | [7,3]@0 [5,3]
"""
IN_ONE_PLACE = """
torch.trace(x) | [7,7]@0; torch.squeeze(x) | [1,2]@0; x.squeeze(0) | [1,2]@0
torch.einsum('nf,mf->f', x, y) | [7,3]@0 [7,3]@0
x.t() @ y @ x | [7,3]@0 [7,7]@0
torch.cross(x, y, dim=0) | [3,7]@0 [3,7]@0; torch.cdist(x.t(), y.t()) | [7,3]@0 [7,2]
x.diagonal(1) | [7,7]@0; x.diagonal(dim1=1, dim2=2) | [2,7,7]@1; x.triu() | [7,7]@0
x.sort(0) | [7,2]@0
x.cumsum(0) | [7,2]@0; x.flip(0, 1) | [7,2]@0; x.roll((1, 2), (0, 1)) | [7,2]@0
x.diff(dim=0) | [7,2]@0
torch.linalg.svdvals(x) | [7,3]@0; torch.linalg.qr(x)[0].abs() | [7,3]@0; x.norm('nuc') | [7,3]@0
torch.linalg.solve(x @ x.t() + torch.eye(7), y) | [7,3]@0 [7,2]@0; torch.linalg.norm(x, 2) | [7,3]@0
F.cross_entropy(x.t(), torch.arange(3)) | [7,3]@0; F.nll_loss(x, torch.arange(3)) | [3,7]@1
F.conv1d(x[None], y) | [3,7]@1 [2,3,3]; F.batch_norm(x, None, None, training=True) | [3,7]@1
torch.nn.GRU(3, 2).double()(x)[0] * 0 | [7,3]@0
torch.take_along_dim(x, y.argsort(0), 0) | [7,2]@0 [7,2]@0
x.view(2, 4, 3) | [8,3]@0; x.view(-1, 2) | [4,7,2]@1; x.t().reshape(-1) | [7,2]@0
x.reshape(2, 7) | [7,2]@0; list(x) | [7,2]@0; x.repeat_interleave(torch.arange(7), 0) | [7,2]@0
F.scaled_dot_product_attention(x, y, y, is_causal=True) | [5,3] [7,3]@0
"""
REFUSED_PRODUCTS = """
torch.einsum('nn->n', x) | [7,7]@0; x.cumsum_(0) | [7,2]@0
x - y | [7,1]@0 [7]@0
torch.eye(x.size(1), dtype=x.dtype).to_sparse() @ x.t() | [7,3]@0
"""
OF_ROWS = """
x.view(x.size(0), -1) | [7,2,3]@0; x.view(-1, 2, 3) | [7,6]@0; x.view(-1) | [7,6]@0
x.view(-1, 3) | [7,6]@0; x.view(-1).view(7, -1) | [7,6]@0
x.view(-1).view(14, 3).view(7, 3, 2) | [7,6]@0; x.view(1, 7, 6).reshape(7, 2, 3) | [7,6]@0
x.reshape(4, -1) | [4,7,2]@1; x.view_as(y) | [7,6]@0 [7,2,3]@0; x.view_as(y) * y | [7,6] [7,2,3]@0
x.t().reshape(3, 2, 7) | [7,6]@0; x.flatten().unflatten(0, (7, -1)) | [7,6]@0
x.view(-1, 2, 3).view(1, 6).view(-1) | [1,6]@0; x.reshape(7, 0, 2) | [7,0]@0
x.expand(4, -1, 2) | [7,1]@0; x.expand(x.size(0), 5) | [7,1]@0; x.expand_as(y) | [3] [7,3]@0
x.tile(3) | [7,2]@0; torch.hstack((x, y)) | [7,2]@0 [7,3]@0
torch.column_stack((x, y)) | [7]@0 [7,3]@0; torch.dstack((x, y)) | [7,2,1]@0 [7,2,3]@0
x.repeat_interleave(2, dim=0) | [7,2]@0; x.repeat_interleave(2) | [7,2]@0
x.repeat_interleave(2, 0).view(7, 2, 3).sum(1) | [7,3]@0; x.squeeze(-1).squeeze(0) | [7,1]@0
(x * 1).unsqueeze_(1).transpose_(0, 1).squeeze_(0) | [7,2]@0; x.narrow(0, 0, 7) | [7,4]@0
torch.stack([y, x], dim=-1) | [7,2]@0 [7,2]; x.view(torch.int32) | [7,2]@0
x.new_zeros(7, 2) + x.new_full((x.size(0), 1), 3) | [7,2]@0
"""
FETCHED = """
x.narrow(0, 1, 2) + x.narrow(0, -3, 2) | [7,2]@0; x.select(0, 4) | [7,2]@0; x.chunk(2) | [7,2]@0
x.split([3, 4], dim=1) | [2,7]@1
"""
REFUSED_SHAPES = """
x.expand(5, -1) | [1,3]@0
x.unfold(0, 2, 1) | [7,2]@0; x.as_strided((2, 2), (1, 1)) | [7,2]@0
"""


class Small(NamedTuple):
    """An expression of x, y, z and w, random tensors that are like ``[5, 3]@0 [3]``."""

    expression: str
    tensors: str

    @classmethod
    def of(cls, case: str) -> Small:
        """Of a table: ``expression | tensors``."""
        return cls(*case.split(' | '))

    def __call__(self, *tensors: Any) -> Any:
        names = dict(zip('xyzw', tensors, strict=False))
        return eval(self.expression, {'torch': torch, 'F': F, **names})


def verdict(small: Small, *, has_empty: bool, dtype: torch.dtype = torch.float64) -> Verdict:
    """Against the whole, with gradients; whether what it gives is rows is noted."""
    generator = torch.Generator().manual_seed(0)
    tensors, tagging = [], []
    for text in small.tensors.split():
        shape, _, dim = text.partition('@')
        sizes = [int(size) for size in shape.strip('[]').split(',')]
        tensors.append(torch.randn(sizes, dtype=dtype, generator=generator))
        tagging.append(int(dim) if dim else None)
    case = Case(small, tuple(tensors), {})
    try:
        whole = whole_of(case)
    except RuntimeError:
        whole = whole_of(case, with_grads=False)
    return verdict_of(case, tuple(tagging), whole, has_empty=has_empty)


NUMBERS = torch.float64, torch.complex128
TABLES = [
    *product([(ROW_BY_ROW, True), (OVER_THE_ROWS, False)], NUMBERS),
    *product([(OF_ROWS, True), (FETCHED, False)], [torch.float64]),
    *product([(ALL_PAIRS, True), (IN_ONE_PLACE, False)], [torch.float64]),
]
"""Whether what they give is rows; of which numbers."""


@pytest.mark.parametrize('has_empty', [False, True])
@pytest.mark.parametrize(('table', 'dtype'), TABLES)
def test_those_of_the_whole(table: tuple[str, bool], dtype: torch.dtype, has_empty: bool) -> None:
    for small in map(Small.of, expressions(table[0])):
        made = verdict(small, has_empty=has_empty, dtype=dtype)
        assert (made.status, made.has_rows) == ('right', table[1]), (small, made.why)


def test_refused() -> None:
    for small in map(Small.of, expressions(REFUSED_PRODUCTS + REFUSED_SHAPES)):
        assert verdict(small, has_empty=False).status == 'refused', small


@on_threads(2)
def test_a_dropout_of_weights_keeps_their_mean() -> None:
    """Every one of 64 equal weights is dropped by itself, or doubled."""
    ids = torch.arange(32) + 32 * rank()
    rows = tag(torch.zeros(32, 1), 0, Sharding(32, what='nodes', ids=ids, total=64))
    torch.manual_seed(0)
    kept = F.scaled_dot_product_attention(rows, rows, rows + 1, dropout_p=0.5)
    counts = pyg_sar.gather(kept).view(-1) * 32
    assert torch.equal(counts, counts.round())
    assert counts.unique().numel() > 5
    assert abs(float(counts.mean()) - 32) < 4


@on_threads(2)
def test_a_dropout_of_channels_drops_them_whole() -> None:
    """Others on every rank, and what is drawn next is the same; rows as channels are refused."""
    ids = torch.arange(32) + 32 * rank()
    sharding = Sharding(32, what='nodes', ids=ids, total=64)
    drops = {F.dropout1d: (4,), F.dropout2d: (2, 2), F.dropout3d: (2, 1, 2)}
    for drop, shape in {**drops, F.feature_alpha_dropout: (4,)}.items():
        torch.manual_seed(0)
        rows = tag(torch.ones(32, 5, *shape), 0, sharding)
        whole = pyg_sar.gather(drop(rows, 0.5, True)).view(64, 5, 4)
        assert len(set(agree(torch.rand(1).item()))) == 1
        assert torch.equal(whole, whole[..., :1].expand(-1, -1, 4))
        is_kept = whole[..., 0] == whole.max()
        assert 100 < int(is_kept.sum()) < 220
        assert not torch.equal(is_kept[:32], is_kept[32:])
        assert whole.unique().tolist() == [0, 2] or drop is F.feature_alpha_dropout
        with pytest.raises(ValueError, match='for rows in front'):
            drop(tag(torch.ones(5, 32, *shape), 1, sharding), 0.5, True)
    with pytest.raises(ValueError, match='to drop whole rows'):
        F.dropout1d(tag(torch.ones(32, 5), 0, sharding))


def _cut(total: int = 3, **options: Any) -> tuple[Sharding, Any]:
    ids = torch.tensor([[1, 0], [2, 4]])[rank()][: 2 if total > 3 else 2 - rank()]
    sharding = Sharding(len(ids), what='nodes', ids=ids, total=total, **options)
    return sharding, tag(torch.ones(len(ids), 2), 0, sharding)


def _errors() -> list[str]:
    _, x = _cut()
    found = []
    for call in (lambda: x.view(4, 2), lambda: x.view(-1, -1), lambda: x.reshape(-1, 4)):
        with pytest.raises(RuntimeError, match='invalid for input of size 6') as error:
            call()
        found.append(str(error.value))
    return found


def test_sizes_that_do_not_fit_are_named_on_all_ranks_alike() -> None:
    first, second = run_as_threads(_errors, 2)
    assert first == second


@on_threads(2)
def test_new_tensors_are_of_the_only_space_of_their_size() -> None:
    nodes = Sharding(1, what='nodes', ids=torch.tensor([rank()]), total=2)
    sharding, x = _cut(nodes=(nodes,))
    assert sharding_of_size(x, [3, 9]) is sharding
    assert sharding_of_size(x, [2]) is nodes
    assert sharding_of_size(x, [4]) is None
    assert sharding_of_size(x, []) is None
    assert x.new_zeros(2, 5)._sharding is nodes
    assert x.new_ones(x.size())._sharding is sharding
    for plain in (x.new_zeros(4), x.new_zeros(()), x.new_zeros(3, requires_grad=True)):
        assert not isinstance(plain, Rows)
    twice = tag(torch.ones(1, 2), 0, Sharding(1, what='edges', total=2, nodes=(nodes,)))
    assert type(twice.new_zeros(2)) is Tensor  # may be meant for nodes or edges
    assert type(x.new_tensor([1.0, 2.0, 3.0])) is Tensor


FOLLOWED = """
x.t().index_add(1, data.edge_index[0], x[data.edge_index[1]].t(), alpha=0.5)
x.index_add(0, data.edge_index[0], source=x[data.edge_index[1]], alpha=-2)
(x := data.x.t()).reshape(-1, 2); x.view(20, 12)
B @ x; torch.sparse.mm(B, x); B.to_dense() @ x
"""


def _followed(data: Any, wrap: Any, expression: str) -> list[Any]:
    """What an expression gives, or what its error says to write."""
    leaf = data.x.detach().requires_grad_()
    x = leaf * 2
    B = torch.arange(120.0, dtype=x.dtype).view(3, 40).to_sparse()
    names = {'data': Data(x=x, edge_index=data.edge_index), 'x': x, 'B': B}
    names |= {'torch': torch, 'pyg_sar': pyg_sar}
    try:
        out = eval(expression, names)
    except ValueError as error:
        out = eval(str(error).partition(': write ')[2], names)
    out.square().sum().backward()
    return [out.detach(), gradient(leaf)]


@pytest.mark.parametrize('expression', expressions(FOLLOWED))
def test_what_errors_say_is_right(expression: str) -> None:
    assert_alike(_followed, expression, ranks=(2,))
