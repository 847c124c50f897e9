"""A norm that wrap has made global is the object that the model had."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric import nn as pyg

from pyg_sar import wrap
from pyg_sar.norm import GlobalBatchNorm, GlobalPyGBatchNorm


class _Listed(torch.nn.Module):
    """Holds its norms in a plain list as well, and uses that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner, self.outer = pyg.SAGEConv(4, 4), torch.nn.BatchNorm1d(4), None
        self.outer = pyg.BatchNorm(4)
        self.listed = [self.inner, self.outer, self.outer.module]

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.outer(self.listed[0](self.conv(x, edge_index)))


def test_a_norm_in_a_list_is_global() -> None:
    model = _Listed()
    before = list(model.listed)
    wrap(model)
    after = [model.inner, model.outer, model.outer.module]
    assert [id(norm) for norm in after] == [id(norm) for norm in before]
    kinds = [GlobalBatchNorm, GlobalPyGBatchNorm, GlobalBatchNorm]
    assert [type(norm) for norm in model.listed] == kinds
