"""Products of rows on three ranks against those of the whole, with gradients of all operands."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from on_ranks import on_threads
from small_cases import Small, verdict
from torch import Tensor

from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import tag
from pyg_sar.rows.sharding import Sharding


def _einsum(equation: str) -> Any:
    return lambda *operands: torch.einsum(equation, *operands)


def _sparse(x: Tensor) -> Tensor:
    return torch.eye(x.size(1), dtype=x.dtype).to_sparse() @ x.t()


ROW_BY_ROW = [
    Small('reversed', lambda w, x: w @ x.t(), '[2,3] [7,3]@0'),
    Small('__rmatmul__', lambda w, x: torch.Tensor.__rmatmul__(x, w), '[2,3] [3,7]@1'),
    Small('heads broadcast', torch.matmul, '[7,3]@0 [4,3,2]'),
    Small('a plain matrix per row', torch.bmm, '[7,2,3]@0 [7,3,2]'),
    Small('one matrix for all rows', torch.matmul, '[7,2,3]@0 [1,3,2]'),
    Small('linear in the middle', F.linear, '[4,7,3]@1 [2,3] [2]'),
    Small('linear to rows', F.linear, '[4,3] [7,3]@0 [7]'),
    Small('bilinear', F.bilinear, '[7,3]@0 [7,2]@0 [4,3,2] [4]'),
    Small('addmm to rows', lambda *a: torch.addmm(*a, beta=0.5, alpha=2), '[7,2]@0 [7,3] [3,2]'),
    Small('einsum', _einsum('nhd,hde->nhe'), '[7,2,3]@0 [2,3,4]'),
    Small('einsum without arrow', _einsum('nd,de'), '[7,3]@0 [3,2]'),
    Small('einsum dots', _einsum('...d,de->e...'), '[2,7,3]@1 [3,2]'),
    Small('one row', torch.matmul, '[1,3]@0 [3,2]'),
]

OVER_THE_ROWS = [
    Small('h.t() @ h', lambda h: h.t() @ h, '[7,3]@0'),
    Small('k.t() @ v', lambda k, v: k.t() @ v, '[7,3]@0 [7,2]@0'),
    Small('with plain rows', lambda k, v: k.t() @ v, '[7,3]@0 [7,2]'),
    Small('plain weights of rows', torch.mv, '[2,7] [7]@0'),
    Small('dot', torch.dot, '[7]@0 [7]@0'),
    Small('linear', F.linear, '[3,7]@1 [2,7] [2]'),
    Small('bilinear', F.bilinear, '[4,7]@1 [4,3] [2,7,3] [2]'),
    Small('addmm', lambda b, k, v: torch.addmm(b, k.t(), v), '[2] [7,3]@0 [7,2]@0'),
    Small('einsum', _einsum('nhm,nhd->hmd'), '[7,2,3]@0 [7,2,4]@0'),
    Small('einsum without arrow', _einsum('nd,ne'), '[7,3]@0 [7,2]'),
    Small('einsum of one', _einsum('nd->d'), '[7,3]@0'),
    Small('one row', lambda k, v: k.t() @ v, '[1,3]@0 [1,2]@0'),
]

REFUSED = [
    Small('every pair', lambda q, k: q @ k.t(), '[7,3]@0 [7,3]@0'),
    Small('every pair of heads', torch.matmul, '[2,7,3]@1 [2,3,7]@2'),
    Small('tensordot', lambda a, b: torch.tensordot(a, b, 1), '[7,3]@0 [3,2]'),
    Small('cdist', torch.cdist, '[7,3]@0 [7,3]@0'),
    Small('einsum', _einsum('nd,md->nm'), '[7,3]@0 [7,3]@0'),
    Small('einsum diagonal', _einsum('nn->n'), '[7,7]@0'),
    Small('rows and features', torch.mm, '[7,7]@0 [7,7]@0'),
    Small('linear', F.linear, '[7,3]@0 [7,3]@0'),
    Small('trace', torch.trace, '[7,7]@0'),
    Small('diagonal', torch.diagonal, '[7,7]@0'),
    Small('cross', lambda a, b: torch.cross(a, b, dim=0), '[3,7]@0 [3,7]@0'),
    Small('sparse', _sparse, '[7,3]@0'),
]


@pytest.mark.parametrize('has_empty', [False, True])
@pytest.mark.parametrize('dtype', [torch.float64, torch.complex128])
@pytest.mark.parametrize('has_rows', [True, False])
def test_products_are_those_of_the_whole(
    has_rows: bool, dtype: torch.dtype, has_empty: bool
) -> None:
    for small in ROW_BY_ROW if has_rows else OVER_THE_ROWS:
        made = verdict(small, has_empty=has_empty, dtype=dtype)
        assert (made.status, made.has_rows) == ('right', has_rows), (small.name, made.why)


@pytest.mark.parametrize('small', REFUSED, ids=lambda small: small.name)
def test_refused(small: Small) -> None:
    assert verdict(small, has_empty=False).status == 'refused'


@on_threads(2)
def test_refusing_every_pair_names_what_to_use_instead() -> None:
    x = tag(torch.ones(rank() + 1, 3), 0, Sharding(rank() + 1, what='nodes', total=3))
    with pytest.raises(ValueError, match='spread over the ranks') as error:
        x @ x.t()
    assert 'torch.nn.functional.scaled_dot_product_attention' in str(error.value)
    assert 'q @ (k.t() @ v)' in str(error.value)
