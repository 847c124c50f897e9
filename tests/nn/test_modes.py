"""Options of a conv: what has no meaning is refused, and models pass them on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_geometric.nn import (
    GCNConv,
)

from pyg_sar import DistributedDataParallel, SARConv

TOLERANCE = 1e-10


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({'mode': 'auto'}, "mode='sequential'"),
    ({'exchange_dtype': torch.float16}, 'exchange_dtype.*bfloat16.*float16'),
    ({'exchange_dtype': torch.float32}, 'exchange_dtype.*bfloat16.*float32'),
    ({'exchange_dtype': torch.int8}, 'exchange_dtype.*bfloat16.*int8'),
    ({'exchange_dtype': 'bfloat16'}, "exchange_dtype.*'bfloat16'"),
]


@pytest.mark.parametrize(('options', 'words'), OPTIONS, ids=str)
def test_options_without_a_meaning(options, words):
    for make in (
        lambda: SARConv(GCNConv(6, 6), **options),
        lambda: DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        lambda: DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_models_pass_options_on():
    options = {'mode': 'sequential', 'exchange_dtype': torch.bfloat16, 'partial_sums': False}
    for model in (
        DistributedDataParallel(torch.nn.ModuleList([GCNConv(6, 6)]), **options),
        DistributedDataParallel(
            torch.nn.ModuleList([GCNConv(6, 6)]), return_memory=False, **options
        ).module,
    ):
        assert vars(model[0].sar_options) == options
