"""Uniform neighbour sampling in NumPy, where NeighborLoader has no pyg-lib or torch_sparse.

The same samples as NeighborLoader with ``replace=False``, ``subgraph_type='directional'``: every
node's in-neighbours are drawn once, at the hop that reaches it first, and the batch's edges are
grouped by hop, so that a model can leave out rows that no later layer reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """The sampled subgraph of some seed nodes.

    Attributes:
        n_id: Its nodes in the whole graph, int64 ``[num_nodes]``; the seeds come first.
        edge_index: int64 ``[2, num_edges]`` in positions of `n_id`.
        nodes_per_hop: How many nodes every hop added, the seeds first.
        edges_per_hop: How many edges every hop added.
        num_seeds: How many seeds there are.
    """

    n_id: Tensor
    edge_index: Tensor
    nodes_per_hop: list[int]
    edges_per_hop: list[int]
    num_seeds: int


class NeighborSampler:
    """Draws batches of a graph.

    Args:
        edge_index: int64 ``[2, num_edges]``.
        num_nodes: Number of nodes.
        fan_outs: In-neighbours of a node to draw, by hop.
        seed: Of the draws.
    """

    def __init__(
        self, edge_index: Tensor, num_nodes: int, fan_outs: Sequence[int], *, seed: int = 0
    ) -> None:
        src, dst = edge_index.numpy()
        self.src = src[np.argsort(dst, kind='stable')]
        self.ptr = np.zeros(num_nodes + 1, np.int64)
        np.cumsum(np.bincount(dst, minlength=num_nodes), out=self.ptr[1:])
        self.fan_outs = list(fan_outs)
        self.rng = np.random.default_rng(seed)
        self.position = np.full(num_nodes, -1, np.int64)

    def epoch(self, nodes: Tensor, batch_size: int) -> Iterator[Batch]:
        """All nodes once, in random order; the next batch is drawn while one is trained on."""
        order = self.rng.permutation(nodes.numpy())
        seeds = [order[i : i + batch_size] for i in range(0, order.size, batch_size)]
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self.sample, seeds[0])
            for number in range(len(seeds)):
                batch = ahead.result()
                if number + 1 < len(seeds):
                    ahead = pool.submit(self.sample, seeds[number + 1])
                yield batch

    def sample(self, seeds: Int64Array) -> Batch:
        """The subgraph that one batch of seeds needs."""
        position = self.position
        position[seeds] = np.arange(seeds.size)
        nodes, edges = [seeds], []
        num_nodes = seeds.size
        for fan_out in self.fan_outs:
            src, dst = self._draw(nodes[-1], fan_out)
            new = np.unique(src[position[src] < 0])
            position[new] = num_nodes + np.arange(new.size)
            num_nodes += new.size
            nodes.append(new)
            edges.append(np.stack([position[src], position[dst]]))
        n_id = np.concatenate(nodes)
        position[n_id] = -1
        return Batch(
            torch.from_numpy(n_id),
            torch.from_numpy(np.concatenate(edges, axis=1)),
            [part.size for part in nodes],
            [part.shape[1] for part in edges],
            seeds.size,
        )

    def _draw(self, nodes: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
        """Sources and destinations of `count` in-edges of every node, or of all it has."""
        degree = self.ptr[nodes + 1] - self.ptr[nodes]
        few = degree <= count
        # All in-edges of the nodes that have few: their places, one after another.
        start, length = self.ptr[nodes[few]], degree[few]
        offset = np.cumsum(length) - length
        places = np.arange(length.sum()) + np.repeat(start - offset, length)
        dst = np.repeat(nodes[few], length)
        # The others by Floyd's algorithm (Bentley and Floyd, CACM 1987): for j in
        # d - count ... d - 1 draw t in 0 ... j and take t, or j where t has been taken.
        many, degree = nodes[~few], degree[~few]
        taken = np.full((many.size, count), -1, np.int64)
        for i in range(count):
            j = degree - count + i
            t = (self.rng.random(many.size) * (j + 1)).astype(np.int64)
            is_taken = (taken[:, :i] == t[:, None]).any(axis=1)
            taken[:, i] = np.where(is_taken, j, t)
        drawn = (self.ptr[many][:, None] + taken).ravel()
        src = self.src[np.concatenate([places, drawn])]
        return src, np.concatenate([dst, np.repeat(many, count)])
