"""PyG's AddRandomWalkPE on a large graph: the same numbers, for some nodes at a time.

PyG multiplies sparse matrices, and these fill up, to N x N numbers. Here a dense block has the
columns of a power for 64 nodes, and no more of it is held.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import coalesce, scatter

from pyg_sar.commands.command_line import progress_bar
from pyg_sar.kernels.weighted_sums import add_weighted_sums
from pyg_sar.shard.bags import Bags, make_bags

DENSE_NODES = 2_000
"""Up to so many nodes PyG computes with a dense matrix, in which one of equal edges counts."""

_COLUMNS = 64


def with_random_walk(data: Data, transform: AddRandomWalkPE, *, progress: bool = False) -> Data:
    """What PyG's transform gives on a graph of more than ``DENSE_NODES`` nodes."""
    steps, num_nodes = transform.walk_length, data.num_nodes
    assert data.edge_index is not None
    assert num_nodes is not None
    pe = _diagonals(data.edge_index, data.edge_weight, num_nodes, steps, progress)
    if transform.attr_name is not None:
        data[transform.attr_name] = pe
    elif data.x is None:
        data.x = pe
    else:
        x = data.x.view(-1, 1) if data.x.dim() == 1 else data.x
        data.x = torch.cat([x, pe.to(x.dtype)], dim=-1)
    return data


def _diagonals(
    edge_index: Tensor, edge_weight: Tensor | None, num_nodes: int, steps: int, progress: bool
) -> Tensor:
    """The diagonals of the powers 1 to `steps` of PyG's transition matrix, ``[N, steps]``.

    Edge (i, j) has the weight ``1 / max(1, w_i)``, where w_i is the sum of the edge weights of i.
    If all edges have their reverse, ``w_i P[i, j]`` is symmetric, and so is
    ``S[i, j] = P[i, j] sqrt(w_i / w_j)``, whose powers have the same diagonals. Of these,
    ``diagonal(S^(s + t))`` is the dots of the columns of ``S^s`` and ``S^t``: half of the steps are
    enough.
    """
    weight = torch.ones(edge_index.size(1)) if edge_weight is None else edge_weight
    total = scatter(weight, edge_index[0], dim_size=num_nodes, reduce='sum').clamp(min=1)
    (rows, cols), count = coalesce(edge_index, torch.ones(edge_index.size(1)), num_nodes)
    is_symmetric = _is_symmetric(rows, cols, count, num_nodes)
    scale = (total[rows] * total[cols]).sqrt() if is_symmetric else total[rows]
    values = (count / scale).float()
    bags = make_bags(rows, cols, num_nodes, is_sorted=True)
    out = torch.zeros(num_nodes, steps)
    walked = out.new_empty(2, num_nodes, 1, _COLUMNS)
    is_own, num_blocks = rows == cols, -(-num_nodes // _COLUMNS)
    if steps > 0:
        out[rows[is_own], 0] = values[is_own]
    order = cols.argsort()  # edges by column: those of a block lie together
    starts = torch.searchsorted(cols[order], torch.arange(num_blocks + 1) * _COLUMNS).tolist()
    with progress_bar('random walk', num_blocks, quiet=not progress) as bar:
        for block in range(num_blocks):
            first = block * _COLUMNS
            edges = order[starts[block] : starts[block + 1]]
            last = min(first + _COLUMNS, num_nodes)
            walked[0].zero_()
            walked[0][rows[edges], 0, cols[edges] - first] = values[edges]
            _walk(out[first:last], walked, bags, values.view(-1, 1), first, is_symmetric)
            bar.update()
    return out


def _walk(
    out: Tensor, walked: Tensor, bags: Bags, values: Tensor, first: int, is_symmetric: bool
) -> None:
    """Writes the columns from 1 on of `out`, the rows of nodes from `first` on.

    ``walked[0]`` has their columns of the matrix.
    """
    num, steps = out.shape
    here, there = walked
    own = torch.arange(num)
    if not is_symmetric:
        for step in range(1, steps):
            add_weighted_sums(there, here, bags, values, replace=True)
            here, there = there, here
            out[:, step] = here[first + own, 0, own]
        return
    for step in range(1, steps, 2):  # column t is of the power t + 1
        out[:, step] = _dots(here, here, num)
        if step + 1 < steps:
            add_weighted_sums(there, here, bags, values, replace=True)
            out[:, step + 1] = _dots(here, there, num)
            here, there = there, here


def _dots(left: Tensor, right: Tensor, num: int) -> Any:
    return torch.linalg.vecdot(left[:, 0], right[:, 0], dim=0)[:num]


def _is_symmetric(rows: Tensor, cols: Tensor, count: Tensor, num_nodes: int) -> bool:
    """Whether all edges have their reverse, as often; edges are ordered by row and column."""
    turned = cols * num_nodes + rows
    order = turned.argsort()
    same = torch.equal(turned[order], rows * num_nodes + cols)
    return same and torch.equal(count[order], count)
