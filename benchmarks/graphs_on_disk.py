"""Graphs of any size, drawn by chunks onto disk: folders of .npy files, as the partitioner reads.

Nodes lie in communities of about 350, whose ids are scattered over all ids. The two ends of an edge
are drawn from one community (70 %), from communities nearby (20 %) or from anywhere, each with a
preference for the first nodes of a community, so degrees are uneven. Every edge is stored in both
directions; the few duplicates stay.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Shape:
    """Of a graph that is drawn; every pair of nodes is an edge in both directions."""

    num_nodes: int
    num_pairs: int
    num_features: int


SHAPES = {
    'tiny': Shape(2_000, 8_000, 16),
    'arxiv': Shape(169_343, 1_157_799, 128),
    'quarter': Shape(612_257, 15_464_785, 100),
    'medium': Shape(1_000_000, 15_000_000, 100),
    'synthetic': Shape(2_000_000, 30_000_000, 32),
    'products': Shape(2_449_029, 61_859_140, 100),
    'large': Shape(6_000_000, 150_000_000, 32),
}
"""`arxiv` and `products` have the sizes of the OGB graphs of these names."""

COMMUNITY = 350
_CHUNK = 1 << 20


def drawn(name: str, folder: Path) -> Path:
    """The folder of one of SHAPES, drawn on first use and then kept in `folder`."""
    path = folder / f'partition-{name}'
    if not path.exists():
        begun = path.with_suffix('.tmp')
        shutil.rmtree(begun, ignore_errors=True)
        generate(begun, **vars(SHAPES[name]))
        begun.rename(path)
    return path


def generate(
    folder: Path, *, num_nodes: int, num_pairs: int, num_features: int, seed: int = 0
) -> None:
    """Writes edge_index.npy (int32), x.npy (float32), y.npy and train_mask.npy: a new folder."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    ids = rng.permutation(num_nodes).astype(np.int32)
    edges = _create(folder, 'edge_index', np.int32, (2, 2 * num_pairs))
    for start in range(0, num_pairs, _CHUNK):
        stop = min(start + _CHUNK, num_pairs)
        ends = ids[_draw(rng, stop - start, num_nodes)]
        for half, pair in ((0, ends), (num_pairs, ends[::-1])):
            edges[:, half + start : half + stop] = pair
    edges.flush()
    rows = max(1, _CHUNK // max(num_features, 1))
    x = _create(folder, 'x', np.float32, (num_nodes, num_features))
    for start in range(0, num_nodes, rows):
        part = x[start : start + rows]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    x.flush()
    np.save(folder / 'y.npy', rng.integers(0, 47, num_nodes))
    np.save(folder / 'train_mask.npy', rng.random(num_nodes) < 0.08)


def _draw(rng: np.random.Generator, count: int, num_nodes: int) -> Any:
    """Pairs of positions, int64 [2, count]; a community is a run of positions."""
    num_communities = max(1, num_nodes // COMMUNITY)
    first = rng.integers(0, num_communities, count)
    kind = rng.random(count)
    near = first + rng.integers(-8, 9, count)
    second = np.where(kind < 0.7, first, near) % num_communities
    anywhere = kind >= 0.9
    second[anywhere] = rng.integers(0, num_communities, int(anywhere.sum()))
    of = np.stack([first, second])
    begin = of * num_nodes // num_communities
    size = (of + 1) * num_nodes // num_communities - begin
    return begin + (rng.random((2, count)) ** 2 * size).astype(np.int64)


def _create(folder: Path, name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
    return np.lib.format.open_memmap(folder / f'{name}.npy', 'w+', dtype, shape)
