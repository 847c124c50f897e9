"""Synthetic graphs with the shape of real ones: power-law degrees, communities, homophily.

A degree-corrected stochastic block model. Every node has a class, a community within the class
and a Pareto weight. The source of an edge is drawn by weight among all nodes; its destination by
weight among the source's community, its class or all nodes. Duplicates and self loops are drawn
again, and every edge is stored in both directions. The graph is
in memory: 300 M directed edges take 10 GB.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch_geometric.data import Data

from pyg_sar.partition.masks import masks_of_runs
from pyg_sar.partition.memmap import Int64Array

Float32Array = npt.NDArray[np.float32]

_DRAWN_PAIRS = 1 << 22
"""Pairs drawn at a time: a pair takes about 100 bytes while it is drawn, and 8 afterwards."""

_FEATURE_ROWS = 16384
"""Rows of noise drawn at a time: the generator draws float64, twice the size of the result."""


@dataclass(frozen=True)
class GraphShape:
    """The sizes of a synthetic graph."""

    num_nodes: int
    num_pairs: int  # number of distinct undirected edges; the graph has twice as many directed ones
    num_features: int
    num_classes: int  # number of classes, their sizes Zipf-like
    community_size: int = 350  # mean number of nodes of a community, a part of a class
    p_community: float = 0.45  # share of edges within a community
    p_class: float = 0.25  # share of edges within a class, but drawn beyond the community
    tail: float = 1.7  # tail index of the Pareto weights; smaller is heavier
    max_weight: float = 4000.0  # where the weights are cut off

    def __post_init__(self) -> None:
        if not 4 * self.num_pairs <= self.num_nodes * (self.num_nodes - 1) / 2:
            raise ValueError(
                "'num_pairs' must be at most a quarter of all pairs of 'num_nodes' nodes "
                f'(got {self.num_pairs} and {self.num_nodes})'
            )


ARXIV = GraphShape(num_nodes=169_343, num_pairs=1_157_799, num_features=128, num_classes=40)
"""The sizes of ogbn-arxiv made undirected, without self loops."""

PRODUCTS = GraphShape(num_nodes=2_449_029, num_pairs=61_859_140, num_features=100, num_classes=47)
"""The sizes of ogbn-products, which is undirected."""

# Communities that METIS finds: few halo rows.
_EASY = {'num_classes': 47, 'p_community': 0.8, 'p_class': 0.1}

SHAPES = {
    'arxiv': ARXIV,
    'products': PRODUCTS,
    'tiny': GraphShape(2_000, 8_000, 16, 8),
    'easy-arxiv': GraphShape(169_343, 1_157_799, 128, **_EASY),
    'easy-medium': GraphShape(1_000_000, 15_000_000, 100, **_EASY),
    'easy-products': GraphShape(2_449_029, 61_859_140, 100, **_EASY),
    'easy-large': GraphShape(6_000_000, 150_000_000, 32, **_EASY),
}

SPLIT = (0.54, 0.18)
"""Shares of training and validation nodes; the rest is for testing."""


def shape_of(text: str) -> GraphShape:
    """The shape that the part of a name after ``synthetic:`` stands for.

    It is one of SHAPES, or ``'N,E'``: N nodes, E undirected edges, 32 features and 8 classes.
    """
    if text in SHAPES:
        return SHAPES[text]
    match = re.fullmatch(r'(\d+),(\d+)', text)
    if match is None:
        names = ', '.join(f'synthetic:{name}' for name in SHAPES)
        raise ValueError(
            f'expected one of {names}, or synthetic:N,E for N nodes and E undirected edges, such '
            f"as synthetic:1500,6000 (got 'synthetic:{text}')"
        )
    return GraphShape(int(match[1]), int(match[2]), num_features=32, num_classes=8)


def synthetic_graph(shape: GraphShape, *, seed: int = 0) -> Data:
    """Draws a graph; the same shape and seed give the same graph.

    Gives ``edge_index`` int64 [2, 2 * num_pairs], symmetric, sorted by (source, destination),
    without duplicates and self loops; ``x`` float32 [N, num_features], class and community centres
    plus noise; ``y`` int64 [N]; ``train_mask``, ``val_mask`` and ``test_mask`` bool [N];
    ``num_classes``.
    """
    rng = np.random.default_rng(seed)
    groups = _Groups.draw(shape, rng)
    edge_index = _draw_edges(shape, groups, rng)
    x = _draw_features(shape, groups, rng)
    order = torch.from_numpy(rng.permutation(shape.num_nodes))
    num_train, num_val = (round(share * shape.num_nodes) for share in SPLIT)
    sizes = [num_train, num_val, shape.num_nodes - num_train - num_val]
    return Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(edge_index),
        y=torch.from_numpy(groups.label),
        num_classes=shape.num_classes,
        **masks_of_runs(order, sizes, shape.num_nodes),
    )


def on_disk(name: str, folder: Path) -> Path:
    """The folder of arrays of one of SHAPES, drawn on first use and then kept in `folder`."""
    path = folder / f'partition-{name}'
    if not path.exists():
        begun = path.with_suffix('.tmp')
        shutil.rmtree(begun, ignore_errors=True)
        save(synthetic_graph(SHAPES[name]), begun)
        begun.rename(path)
    return path


def save(data: Data, folder: Path) -> None:
    """Writes edge_index.npy (int32), x.npy, y.npy and train_mask.npy: a new folder."""
    folder.mkdir(parents=True)
    np.save(folder / 'edge_index.npy', data.edge_index.numpy().astype(np.int32))
    for name in ('x', 'y', 'train_mask'):
        np.save(folder / f'{name}.npy', data[name].numpy())


@dataclass(frozen=True)
class _Groups:
    """Nodes sorted by (class, community), so that each of them is a run of positions.

    Shapes:
        - **label**, **community** int64 [N]: of every node
        - **order** int64 [N]: the node at every position
        - **weight_ptr** float64 [N + 1]: running sum of the weights, 1 or more, by position
        - **class_ptr**, **community_ptr** int64: first position of every class or community
    """

    label: Int64Array
    community: Int64Array
    order: Int64Array
    weight_ptr: npt.NDArray[np.float64]
    class_ptr: Int64Array
    community_ptr: Int64Array

    @classmethod
    def draw(cls, shape: GraphShape, rng: np.random.Generator) -> _Groups:
        num_nodes, num_classes = shape.num_nodes, shape.num_classes
        share = 1.0 / (np.arange(num_classes) + 3.0) ** 0.9
        label = rng.choice(num_classes, size=num_nodes, p=share / share.sum()).astype(np.int64)

        class_size = np.bincount(label, minlength=num_classes)
        num_communities = np.maximum(1, np.round(class_size / shape.community_size))
        first = _ptr(num_communities.astype(np.int64))
        offset = (rng.random(num_nodes) * num_communities[label]).astype(np.int64)
        community = first[label] + offset

        pareto = (1.0 - rng.random(num_nodes)) ** (-1.0 / shape.tail)
        order = np.lexsort((community, label))
        weight = np.minimum(pareto, shape.max_weight)[order]
        return cls(
            label,
            community,
            order,
            weight_ptr=np.concatenate([[0.0], np.cumsum(weight)]),
            class_ptr=_ptr(class_size),
            community_ptr=_ptr(np.bincount(community, minlength=int(first[-1]))),
        )

    def draw_nodes(
        self, first: Int64Array, last: Int64Array, rng: np.random.Generator
    ) -> Int64Array:
        """One node per entry, by weight, among the positions [first, last)."""
        low, high = self.weight_ptr[first], self.weight_ptr[last]
        at = low + rng.random(first.shape[0]) * (high - low)
        # A search would take ten times as long: few nodes begin between a number and the next.
        position = self._at_number[at.astype(np.int64)]
        while (is_later := self._end[position] <= at).any():
            position += is_later
        return self.order[np.clip(position, first, last - 1)]

    @cached_property
    def _at_number(self) -> Int64Array:
        """The position at every whole number of the running sum."""
        numbers = np.arange(int(self.weight_ptr[-1]) + 1)
        return np.searchsorted(self.weight_ptr, numbers, side='right') - 1

    @cached_property
    def _end(self) -> npt.NDArray[np.float64]:
        """Where every position ends; nothing begins after the last."""
        return np.append(self.weight_ptr[1:], np.inf)


def _draw_edges(shape: GraphShape, groups: _Groups, rng: np.random.Generator) -> Int64Array:
    num_nodes = shape.num_nodes
    pairs = np.empty(0, np.int64)
    while pairs.size < shape.num_pairs:
        # Some draws are duplicates or self loops: draw more than are missing.
        count = int((shape.num_pairs - pairs.size) * 1.15) + 1000
        sizes = [min(_DRAWN_PAIRS, count - i) for i in range(0, count, _DRAWN_PAIRS)]
        drawn = np.concatenate([_draw_pairs(size, shape, groups, rng) for size in sizes])
        drawn.sort()
        fresh = drawn[np.diff(drawn, prepend=-1) > 0]
        if pairs.size:
            fresh = np.setdiff1d(fresh, pairs, assume_unique=True)
        rng.shuffle(fresh)  # Sorted, a cut at num_pairs would prefer small ids.
        pairs = np.concatenate([pairs, fresh[: shape.num_pairs - pairs.size]])
    low, back = np.divmod(pairs, num_nodes)
    back *= num_nodes
    back += low
    del low
    keys = np.concatenate([pairs, back])
    del pairs, back
    keys.sort()
    # Without the slow divisions of twice as many numbers.
    ptr = np.searchsorted(keys, np.arange(num_nodes + 1) * num_nodes)
    edge_index = np.empty((2, keys.size), np.int64)
    edge_index[0] = np.repeat(np.arange(num_nodes), np.diff(ptr))
    np.multiply(edge_index[0], num_nodes, out=edge_index[1])
    np.subtract(keys, edge_index[1], out=edge_index[1])
    return edge_index


def _draw_pairs(
    count: int, shape: GraphShape, groups: _Groups, rng: np.random.Generator
) -> Int64Array:
    """Pairs as ``low * num_nodes + high``, without self loops: `count` or fewer."""
    num_nodes = shape.num_nodes
    everywhere = np.zeros(count, np.int64), np.full(count, num_nodes, np.int64)
    src = groups.draw_nodes(*everywhere, rng)
    scope = rng.random(count)
    in_community = scope < shape.p_community
    in_class = scope < shape.p_community + shape.p_class
    community, label = groups.community[src], groups.label[src]
    first, last = (
        np.where(
            in_community,
            groups.community_ptr[community + end],
            np.where(in_class, groups.class_ptr[label + end], everywhere[end]),
        )
        for end in (0, 1)
    )
    dst = groups.draw_nodes(first, last, rng)
    low, high = np.minimum(src, dst), np.maximum(src, dst)
    return (low * num_nodes + high)[low != high]


def _draw_features(shape: GraphShape, groups: _Groups, rng: np.random.Generator) -> Float32Array:
    num_communities = groups.community_ptr.size - 1
    of_class, of_community = (
        rng.standard_normal((count, shape.num_features)).astype(np.float32)
        for count in (shape.num_classes, num_communities)
    )
    x = np.empty((shape.num_nodes, shape.num_features), np.float32)
    for start in range(0, shape.num_nodes, _FEATURE_ROWS):
        rows = slice(start, min(start + _FEATURE_ROWS, shape.num_nodes))
        x[rows] = rng.standard_normal((rows.stop - start, shape.num_features))
        x[rows] += 0.25 * of_class[groups.label[rows]] + 0.2 * of_community[groups.community[rows]]
    return x


def _ptr(counts: Int64Array) -> Int64Array:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
