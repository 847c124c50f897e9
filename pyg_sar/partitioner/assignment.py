"""The part of every node: by METIS, at random, or as the caller says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partitioner.metis import check_backend, metis_assignment

METHODS = ('metis', 'random', 'file:PATH')
BALANCES = ('nodes', 'edges', 'train')

TRAIN_SHARE = 0.95
"""Share of the total weight that lies on training nodes with ``balance='train'``.

METIS balances one weight. With a share s on training nodes, a part of mean weight has at most
1 / s = 1.05 times the mean number of them; the rest of the weight keeps the number of nodes from
drifting freely.
"""


def check_method(method: str | Tensor, backend: str, balance: str, *, has_train_mask: bool) -> None:
    """Checks that the options of an assignment fit together.

    Raises:
        ValueError: If an option is unknown, lacks what it needs, or would be ignored.
    """
    if balance not in BALANCES:
        raise ValueError(f"'balance' must be one of {list(BALANCES)} (got {balance!r})")
    if isinstance(method, str) and method == 'metis':
        check_backend(backend)
        if balance == 'train' and not has_train_mask:
            raise ValueError(
                "balance='train' needs training nodes (got a graph without 'train_mask'; "
                "pass 'split' to make one)"
            )
        return
    known = isinstance(method, str) and (method == 'random' or method.startswith('file:'))
    if not known and not isinstance(method, Tensor):
        raise ValueError(f"'method' must be one of {list(METHODS)} (got {method!r})")
    if backend != 'auto':
        raise ValueError(f"'backend' applies to method='metis' alone (got {backend!r})")
    if balance != 'nodes':
        raise ValueError(f"'balance' applies to method='metis' alone (got {balance!r})")


def assign_nodes(
    method: str | Tensor,
    edge_index: Tensor,
    num_nodes: int,
    num_parts: int,
    *,
    backend: str = 'auto',
    seed: int = 0,
    balance: str = 'nodes',
    train_mask: Tensor | None = None,
) -> Tensor:
    """Assigns every node to a part.

    Args:
        method: ``'metis'``, ``'random'``, ``'file:PATH'`` or the parts themselves, [N].
        edge_index: Global source and destination ids, int64 [2, E].
        num_nodes: Number of nodes N.
        num_parts: Number of parts P.
        backend: METIS's binding.
        seed: Seed of METIS or of the random order.
        balance: What METIS balances.
        train_mask: Training nodes, bool [N], for ``balance='train'``.

    Returns:
        The part of every node, int64 [N].

    Raises:
        ValueError: If the parts given are not N integers in [0, P).
    """
    if isinstance(method, Tensor):
        return _checked(method, num_nodes, num_parts, "the tensor 'method'")
    if method.startswith('file:'):
        path = Path(method.removeprefix('file:'))
        return _checked(_read(path), num_nodes, num_parts, f"'{path}'")
    if method == 'random':
        generator = torch.Generator().manual_seed(seed)
        return torch.randperm(num_nodes, generator=generator) % num_parts
    return metis_assignment(
        edge_index,
        num_nodes,
        num_parts,
        backend=backend,
        seed=seed,
        node_weight=_node_weight(edge_index, num_nodes, balance, train_mask),
    )


def _node_weight(
    edge_index: Tensor, num_nodes: int, balance: str, train_mask: Tensor | None
) -> Tensor | None:
    if balance == 'edges':
        return torch.bincount(edge_index[1], minlength=num_nodes) + 1
    if balance == 'train':
        assert train_mask is not None
        train = train_mask.reshape(num_nodes, -1).any(dim=1)
        num_train = int(train.sum())
        rest = num_nodes - num_train
        heavy = round(TRAIN_SHARE / (1 - TRAIN_SHARE) * max(rest, 1) / max(num_train, 1))
        return torch.where(train, max(heavy, 1), 1)
    return None


def _read(path: Path) -> Tensor:
    if not path.is_file():
        raise ValueError(f"expected a file of part ids at '{path}' (got no file)")
    try:
        if path.suffix == '.npy':
            return torch.from_numpy(np.load(path, allow_pickle=False))
        if path.suffix == '.pt':
            parts = torch.load(path, weights_only=True)
            if not isinstance(parts, Tensor):
                raise ValueError(f'a {type(parts).__name__}')
            return parts
        if path.suffix == '.txt':
            return torch.from_numpy(np.loadtxt(path, dtype=np.int64, ndmin=1))
    except Exception as error:
        raise ValueError(f"expected one part id per node in '{path}' (got {error})") from error
    raise ValueError(f"expected a .npy, .pt or .txt file of part ids (got '{path}')")


def _checked(parts: Tensor, num_nodes: int, num_parts: int, where: str) -> Tensor:
    if list(parts.shape) != [num_nodes]:
        raise ValueError(
            f'expected one part id per node, shape [{num_nodes}], in {where} '
            f'(got shape {list(parts.shape)})'
        )
    if parts.is_floating_point() or parts.is_complex() or parts.dtype is torch.bool:
        raise ValueError(f'expected integer part ids in {where} (got {parts.dtype})')
    parts = parts.detach().cpu().to(torch.int64)
    if num_nodes and not 0 <= int(parts.min()) <= int(parts.max()) < num_parts:
        raise ValueError(
            f'expected part ids from 0 to {num_parts - 1} in {where} '
            f'(got {int(parts.min())} to {int(parts.max())})'
        )
    return parts
