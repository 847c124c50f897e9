"""A small awkward graph, uneven cuts of it, and what tests on several ranks share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar import partition_graph

ASSIGNMENTS = ('uneven', 'empty part', 'one reader')


def small_graph(num_nodes: int = 40, num_edges: int = 220, *, seed: int = 0) -> Data:
    """Directed, with self loops, repeated edges and isolated nodes; float64."""
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, num_nodes - 3, (2, num_edges), generator=generator)
    loops = torch.tensor([[3, 4, 4], [3, 4, 4]])
    edge_index = torch.cat([edge_index, edge_index[:, :5], loops], dim=1)
    num_edges = edge_index.size(1)
    return Data(
        x=torch.randn(num_nodes, 6, generator=generator, dtype=torch.float64),
        edge_index=edge_index,
        y=torch.randint(0, 3, (num_nodes,), generator=generator),
        train_mask=torch.rand(num_nodes, generator=generator) < 0.4,
        pos=torch.randn(num_nodes, 2, 2, generator=generator),
        edge_weight=torch.rand(num_edges, generator=generator, dtype=torch.float64) + 0.1,
        edge_attr=torch.randn(num_edges, 4, generator=generator, dtype=torch.float64),
        edge_type=torch.randint(0, 3, (num_edges,), generator=generator),
        num_classes=3,
    )


def assign(num_nodes: int, num_parts: int, kind: str = 'uneven') -> Tensor:
    """A part for every node, int64 ``[num_nodes]``.

    ``'uneven'``: part p has about (p + 1) times the nodes of part 0. ``'empty part'``: the same,
    but nobody lives in part 0. ``'one reader'``: part 0 has one node, so it sends next to nothing.
    """
    generator = torch.Generator().manual_seed(num_parts)
    weights = torch.arange(1, num_parts + 1, dtype=torch.float)
    parts = torch.multinomial(weights, num_nodes, replacement=True, generator=generator)
    parts[torch.randperm(num_nodes, generator=generator)[:num_parts]] = torch.arange(num_parts)
    if kind == 'empty part' and num_parts > 1:
        parts[parts == 0] = num_parts - 1
    if kind == 'one reader' and num_parts > 1:
        parts[(parts == 0) & (torch.arange(num_nodes) != 5)] = 1
        parts[5] = 0
    return parts


def cut(data: Data, num_parts: int, root: Path, kind: str = 'uneven') -> Path:
    """Partitions `data` into a new folder and returns it."""
    assert data.num_nodes is not None
    partition_graph(data, num_parts, root, method=assign(data.num_nodes, num_parts, kind))
    return root


def attempt(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """``'ValueError: ...'`` or whatever `fn` raises, as text that a rank can return."""
    try:
        fn(*args, **kwargs)
    except Exception as error:
        return f'{type(error).__name__}: {error}'
    return 'no error'


def assemble(pieces: Iterable[tuple[Tensor, Tensor]], num_rows: int) -> Tensor:
    """Rows of all ranks in the order of their ids; every id must come exactly once."""
    pieces = list(pieces)
    ids = torch.cat([ids for ids, _ in pieces])
    rows = torch.cat([rows for _, rows in pieces])
    assert ids.sort().values.tolist() == list(range(num_rows))
    out = torch.empty_like(rows)
    out[ids] = rows
    return out


def assert_close(got: Tensor, want: Tensor, *, tolerance: float = 1e-12) -> None:
    """Elementwise, of the same shape and dtype."""
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def assert_all_raise(outcomes: Sequence[str], kind: str, *words: str) -> None:
    """Every rank raised `kind`, with all of `words` in its message."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.startswith(f'{kind}: '), f'rank {rank}: {outcome}'
        for word in words:
            assert word in outcome, f'rank {rank}: {outcome}'
