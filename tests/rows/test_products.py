"""Products of rows on three ranks against those of the whole, with gradients of all operands."""

from __future__ import annotations

import pytest
import torch
from on_ranks import on_threads
from pairs import pairs
from small_cases import cases, verdict

from pyg_sar.comm.ranks import rank
from pyg_sar.rows.rows import tag
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
REFUSED = """
x @ y.t() | [7,3]@0 [7,3]@0; x @ y | [2,7,3]@1 [2,3,7]@2; torch.tensordot(x, y, 1) | [7,3]@0 [3,2]
torch.cdist(x, y) | [7,3]@0 [7,3]@0; torch.einsum('nd,md->nm', x, y) | [7,3]@0 [7,3]@0
torch.einsum('nn->n', x) | [7,7]@0; torch.mm(x, y) | [7,7]@0 [7,7]@0
F.linear(x, y) | [7,3]@0 [7,3]@0; torch.trace(x) | [7,7]@0; torch.diagonal(x) | [7,7]@0
torch.cross(x, y, dim=0) | [3,7]@0 [3,7]@0
torch.eye(x.size(1), dtype=x.dtype).to_sparse() @ x.t() | [7,3]@0
"""


@pairs(has_rows=[True, False], dtype=[torch.float64, torch.complex128], has_empty=[False, True])
def test_products_are_those_of_the_whole(
    has_rows: bool, dtype: torch.dtype, has_empty: bool
) -> None:
    for small in cases(ROW_BY_ROW if has_rows else OVER_THE_ROWS):
        made = verdict(small, has_empty=has_empty, dtype=dtype)
        assert (made.status, made.has_rows) == ('right', has_rows), (small, made.why)


def test_refused() -> None:
    for small in cases(REFUSED):
        assert verdict(small, has_empty=False).status == 'refused', small


@on_threads(2)
def test_refusing_every_pair_names_what_to_use_instead() -> None:
    x = tag(torch.ones(rank() + 1, 3), 0, Sharding(rank() + 1, what='nodes', total=3))
    with pytest.raises(ValueError, match='spread over the ranks') as error:
        x @ x.t()
    assert 'torch.nn.functional.scaled_dot_product_attention' in str(error.value)
    assert 'q @ (k.t() @ v)' in str(error.value)
