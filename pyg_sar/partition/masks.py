"""Masks of the nodes to train, validate and test on: from lists of ids, or split at random."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partition.memmap import INTEGERS, aligned

MASKS = _TRAIN, _VAL, _TEST = ('train_mask', 'val_mask', 'test_mask')
INDICES = {'train_idx': _TRAIN, 'val_idx': _VAL, 'valid_idx': _VAL, 'test_idx': _TEST}
"""Lists of node ids, and the masks that are stored in their place."""


def parse_split(split: str | tuple[float, ...]) -> tuple[float, float, float]:
    """Reads fractions such as ``'0.6/0.2/0.2'`` or ``(0.6, 0.2, 0.2)``."""
    try:
        parts = split.split('/') if isinstance(split, str) else split
        train, val, test = (float(part) for part in parts)
    except (TypeError, ValueError):
        raise ValueError(
            f"'split' must be three fractions such as '0.6/0.2/0.2' (got {split!r})"
        ) from None
    if not (train > 0 and val >= 0 and test >= 0) or not math.isclose(
        train + val + test, 1.0, abs_tol=1e-6
    ):
        raise ValueError(
            f"'split' must be three fractions >= 0 that sum to 1, the first above 0 (got {split!r})"
        )
    return train, val, test


def random_split(
    y: Tensor | None, num_nodes: int, fractions: tuple[float, float, float], *, seed: int
) -> dict[str, Tensor]:
    """Splits the labelled nodes at random into ``train_mask``, ``val_mask`` and ``test_mask``.

    A node is labelled if its integer labels `y` [N, ...] are >= 0, or if any of its float labels is
    not NaN; without `y` every node is.
    """
    labelled = _labelled(y, num_nodes).nonzero().view(-1)
    if labelled.numel() == 0:
        raise ValueError("'split' needs labelled nodes (got none)")
    generator = torch.Generator().manual_seed(seed)
    order = labelled[torch.randperm(labelled.numel(), generator=generator)]
    num_train = round(fractions[0] * order.numel())
    num_val = min(round(fractions[1] * order.numel()), order.numel() - num_train)
    sizes = [num_train, num_val, order.numel() - num_train - num_val]
    if fractions[2] == 0:  # Rounding must not fill a set that was asked to be empty.
        sizes = [num_train, order.numel() - num_train, 0]
    return masks_of_runs(order, sizes, num_nodes)


def masks_of_runs(order: Tensor, sizes: list[int], num_nodes: int) -> dict[str, Tensor]:
    """Masks bool [N] of consecutive runs of `order`, of the given sizes."""
    runs = zip(MASKS, torch.split(order, sizes), strict=True)
    return {name: mask_of(ids, num_nodes) for name, ids in runs}


def mask_of(ids: Tensor, num_nodes: int) -> Tensor:
    """Bool [N], true at some ids."""
    mask = torch.zeros(num_nodes, dtype=torch.bool)
    mask[ids] = True
    return mask


def mask_of_index(index: Any, num_nodes: int, key: str, where: str) -> Tensor:
    """The mask bool [N] of a list of node ids, such as ``train_idx``."""
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in INTEGERS:
        raise ValueError(f"expected a list of node ids in '{key}'{where}")
    index = aligned(index).long()
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < num_nodes:
        raise ValueError(
            f"'{key}'{where} must hold node ids in [0, {num_nodes}) "
            f'(got {int(index.min())} to {int(index.max())})'
        )
    return mask_of(index, num_nodes)


def _labelled(y: Tensor | None, num_nodes: int) -> Tensor:
    if y is None or not (y.dtype.is_signed or y.is_complex()):  # bool and unsigned integers
        return torch.ones(num_nodes, dtype=torch.bool)
    if y.is_floating_point() or y.is_complex():
        return (~y.isnan()).reshape(num_nodes, -1).any(dim=1)
    return (y >= 0).reshape(num_nodes, -1).all(dim=1)
