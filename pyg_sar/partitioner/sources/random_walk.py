"""PyG's AddRandomWalkPE on a large graph: the same numbers, for some nodes at a time.

PyG multiplies sparse matrices, and these fill up, to N x N numbers. Here a dense block has the
columns of a power for 16 nodes, and no more of it is held. A row of it is one cache line, and the
nodes with most edges come first: on ``synthetic:arxiv`` a product takes a third of the time of one
with 64 columns and the nodes as they come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import degree, scatter

from pyg_sar.commands.command_line import progress_bar
from pyg_sar.shard.bags import MAX_EDGES

DENSE_NODES = 2_000
"""Up to so many nodes PyG computes with a dense matrix, in which one of equal edges counts."""

_COLUMNS = 16

_FEW = 0.25
"""Of all edges: where fewer leave the nodes that were reached, the others are not read."""


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

    ``P = D^-1 A``: A[i, j] counts the edges (i, j), D has the sums of edge weights, at least 1.
    Columns of ``Y_s = P^s`` come from ``R_s = A Y_(s-1)``, as ``Y_s = D^-1 R_s``.

    Where A is symmetric, ``A D^-1 A D^-1 ... A`` is, too. So the diagonal of ``P^(s+t)`` is that of
    ``D^-1 R_s^T Y_t``, the dots of columns: half of the steps are enough.
    """
    weight = torch.ones(edge_index.size(1)) if edge_weight is None else edge_weight
    total = scatter(weight, edge_index[0], dim_size=num_nodes, reduce='sum').clamp(min=1)
    nodes = degree(edge_index[1], num_nodes).argsort(descending=True)
    ends = nodes.argsort()[edge_index]
    total = total[nodes].float().view(-1, 1)
    by_row = _Edges.sorted(ends[0], ends[1], num_nodes)
    by_col = _Edges.sorted(ends[1], ends[0], num_nodes)
    is_symmetric = torch.equal(by_row.ptr, by_col.ptr) and torch.equal(by_row.ends, by_col.ends)
    found = torch.empty(num_nodes, steps)
    blocks = range(0, num_nodes, _COLUMNS)
    with progress_bar('random walk', len(blocks), quiet=not progress) as bar:
        for first in blocks:
            out = found[first : first + _COLUMNS]
            own = torch.arange(len(out))
            identity = _Few(first + own, own, torch.ones(len(out)))
            walked = sums = identity.dense(num_nodes, len(out))  # columns of Y_s, and of R_s
            few: _Few | None = identity
            for step in range(steps):
                if step % 2 == 0 or not is_symmetric:
                    few = None if few is None else by_col.from_few(few)
                    sums = by_row.sums(walked) if few is None else few.dense(*walked.shape)
                if step % 2 == 1 or not is_symmetric:
                    torch.div(sums, total, out=walked)
                    few = None if few is None else few.over(total)
                if is_symmetric:
                    out[:, step] = torch.linalg.vecdot(sums, walked, dim=0)
                else:
                    out[:, step] = walked[first + own, own]
            if is_symmetric:
                out /= total[first : first + _COLUMNS]
            bar.update()
    return torch.empty_like(found).index_copy_(0, nodes, found)


@dataclass(frozen=True)
class _Few:
    """A matrix as numbers at a node and a column; those at one place are added."""

    node: Tensor
    column: Tensor
    value: Tensor

    def dense(self, num_nodes: int, num_columns: int) -> Tensor:
        out = torch.zeros(num_nodes * num_columns)
        out.index_add_(0, self.node * num_columns + self.column, self.value)
        return out.view(num_nodes, num_columns)

    def over(self, total: Tensor) -> _Few:
        return replace(self, value=self.value / total[self.node, 0])


@dataclass(frozen=True)
class _Edges:
    """The edges grouped by one end: ``ends[ptr[i] : ptr[i + 1]]`` are the others of node i."""

    ptr: Tensor
    ends: Tensor

    @classmethod
    def sorted(cls, by: Tensor, ends: Tensor, num_nodes: int) -> _Edges:
        keys = (by * num_nodes + ends).sort().values
        ptr = torch.searchsorted(keys, torch.arange(num_nodes + 1) * num_nodes)
        dtype = torch.int32 if keys.numel() <= MAX_EDGES else torch.int64
        return cls(ptr.to(dtype), (keys % num_nodes).to(dtype))

    def sums(self, values: Tensor) -> Tensor:
        """For every node the sum of the rows of its ends."""
        return embedding_bag(self.ends, values, self.ptr, mode='sum', include_last_offset=True)

    def from_few(self, values: _Few) -> _Few | None:
        """Every number at all ends of its node; None where many edges leave."""
        start, num = self.ptr[values.node], self.ptr.diff()[values.node]
        if num.sum() > _FEW * self.ends.numel():
            return None
        of = torch.repeat_interleave(num)
        edges = torch.arange(of.numel()) + (start - num.cumsum(0) + num)[of]
        return _Few(self.ends[edges].long(), values.column[of], values.value[of])
