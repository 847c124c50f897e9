"""What the labels of the whole graph tell: a rank sees its own alone, and would count others."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partitioner.graph.checks import INTEGERS
from pyg_sar.partitioner.graph.split import MASKS, mask_of
from pyg_sar.partitioner.on_disk.rows import aligned, smallest_and_largest

_TRAIN, _VAL, _TEST = MASKS
INDICES = {'train_idx': _TRAIN, 'val_idx': _VAL, 'valid_idx': _VAL, 'test_idx': _TEST}
"""Lists of node ids, and the masks that are stored in their place."""


def label_facts(attrs: Mapping[str, Tensor], taken: Container[str]) -> dict[str, Any]:
    """``num_classes`` and ``label_range`` of integer labels ``y``; nothing of other labels.

    As PyG's datasets count: of one label per node the largest plus one, of several their number.
    Negative labels, of nodes without one, are no class. Names that are `taken` stay the user's.
    """
    y = attrs.get('y')
    if y is None or y.numel() == 0 or y.dtype not in (torch.bool, *INTEGERS):
        return {}
    flat = y.reshape(-1)  # a view, also of a mapped tensor
    low, high = smallest_and_largest(flat.view(torch.uint8) if y.dtype == torch.bool else flat)
    facts = {'num_classes': high + 1 if y.numel() == y.size(0) else y.size(-1)}
    facts = facts if facts['num_classes'] > 0 else {}
    return {k: v for k, v in {**facts, 'label_range': [low, high]}.items() if k not in taken}


def mask_of_index(index: Any, num_nodes: int, key: str, where: str) -> Tensor:
    """The mask bool [N] of a list of node ids, such as ``train_idx``.

    Raises:
        ValueError: If it is no list of ids of nodes.
    """
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in INTEGERS:
        raise ValueError(f"expected a list of node ids in '{key}'{where}")
    index = aligned(index).long()
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < num_nodes:
        raise ValueError(
            f"'{key}'{where} must hold node ids in [0, {num_nodes}) "
            f'(got {int(index.min())} to {int(index.max())})'
        )
    return mask_of(index, num_nodes)
