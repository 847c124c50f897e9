"""What ranks ask each other in a round: in-edges that owners draw, and rows of attributes.

A round is compared once, before its first message. After that a message's sizes are known from the
one before: first how much each rank asks of each, then what; how much comes back, then that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pyg_sar.comm import all_to_all_counts
from pyg_sar.sampling.ask.packed import all_to_all_packed
from pyg_sar.sampling.attributes import Attributes, EdgeKey, NodeKey, Values
from pyg_sar.sampling.graph import Graph

Wanted = tuple[Tensor, Tensor, Tensor | None]
Counts = dict[NodeKey, list[int]]


@dataclass(frozen=True, eq=False)
class Asked:
    """Nodes whose in-edges are to be drawn.

    Attributes:
        row: Own rows, int64 ``[N]``.
        state: What their draws follow from beside their id, int64 ``[N]``.
        until: The time that edges may have, ``[N]``; None for any.
    """

    row: Tensor
    state: Tensor
    until: Tensor | None


@dataclass(frozen=True, eq=False)
class Drawn:
    """In-edges that were drawn.

    Attributes:
        count: Of every node, int64 ``[N]``.
        source: Positions of the sources, ``[E]``.
        row: Where the edges' attributes are, int64 ``[E]``: own rows here.
    """

    count: Tensor
    source: Tensor
    row: Tensor


@dataclass(frozen=True, eq=False)
class Told:
    """In-edges that other ranks have drawn, in the order in which they were asked for.

    Attributes:
        count: Of every node that was asked for, int64 ``[N]``.
        source: Positions of the sources, ``[E]``.
        values: Their attributes.
    """

    count: Tensor
    source: Tensor
    values: Values


def owners(position: Tensor, rank_ptr: tuple[int, ...]) -> Tensor:
    """The ranks that own nodes, int64."""
    found = np.searchsorted(np.asarray(rank_ptr[1:]), position.numpy(), side='right')
    return torch.from_numpy(found.astype(np.int64, copy=False))


def ask_for_edges(
    graph: Graph,
    attributes: Attributes,
    relations: list[EdgeKey],
    wanted: dict[NodeKey, Wanted],
    draw: Callable[[EdgeKey, Asked], Drawn],
) -> dict[EdgeKey, Told]:
    """Has owners draw in-edges of their nodes (collective: four all-to-alls).

    Args:
        graph: The own part of it.
        attributes: Those of edges travel with the edges.
        relations: Of which edges are drawn; the same on all ranks.
        wanted: By type positions of other ranks' nodes in the order of their owners, the states
            and the times of their draws.
        draw: What the own nodes' edges are drawn by.
    """
    counts, asked = _count(graph, {key: each[0] for key, each in wanted.items()})
    questions = _ask(graph, wanted, counts, asked)
    answers = {key: draw(key, questions[graph.edges[key].dst]) for key in relations}
    # How many nodes each rank asked for, and how many edges each of them gets.
    nodes = {key: asked[graph.edges[key].dst] for key in relations}
    edges = [
        [int(of_rank.sum()) for of_rank in torch.split(answers[key].count, nodes[key])]
        for key in relations
    ]
    told = swap(edges)
    tensors, send, recv = [], [], []
    for i, key in enumerate(relations):
        answer = answers[key]
        tensors += [answer.count.int(), answer.source]
        send += [nodes[key], edges[i]]
        recv += [counts[graph.edges[key].dst], told[i]]
        for value in attributes.edges[key].values():
            tensors.append(value.index_select(0, answer.row.to(value.device)))
            send.append(edges[i])
            recv.append(told[i])
    came = iter(all_to_all_packed(tensors, send, recv))
    return {
        key: Told(next(came).long(), next(came), {n: next(came) for n in attributes.edges[key]})
        for key in relations
    }


def _ask(
    graph: Graph, wanted: dict[NodeKey, Wanted], counts: Counts, asked: Counts
) -> dict[NodeKey, Asked]:
    """What the ranks ask of this one, rank 0 first."""
    tensors, send, recv = [], [], []
    for key, (position, *more) in wanted.items():
        for tensor in (_rows_there(graph, key, position), *more):
            if tensor is not None:
                tensors.append(tensor)
                send.append(counts[key])
                recv.append(asked[key])
    came = iter(all_to_all_packed(tensors, send, recv))
    return {
        key: Asked(next(came).long(), next(came), None if until is None else next(came))
        for key, (_, _, until) in wanted.items()
    }


def ask_for_rows(
    graph: Graph, attributes: Attributes, wanted: dict[NodeKey, Tensor]
) -> dict[NodeKey, Values]:
    """Rows of the attributes of other ranks' nodes (collective: three all-to-alls).

    Args:
        graph: The own part of it.
        attributes: Those of nodes.
        wanted: By type positions, ascending.
    """
    counts, asked = _count(graph, wanted)
    tensors = [_rows_there(graph, key, position) for key, position in wanted.items()]
    rows = all_to_all_packed(tensors, list(counts.values()), list(asked.values()))
    tensors, send, recv = [], [], []
    for key, row in zip(wanted, rows, strict=True):
        for value in attributes.nodes[key].values():
            tensors.append(value.index_select(0, row.long().to(value.device)))
            send.append(asked[key])
            recv.append(counts[key])
    came = iter(all_to_all_packed(tensors, send, recv))
    return {key: {name: next(came) for name in attributes.nodes[key]} for key in wanted}


def _count(graph: Graph, wanted: dict[NodeKey, Tensor]) -> tuple[Counts, Counts]:
    """By type how many nodes this rank asks of every rank, and how many each asks of it."""
    size = graph.world_size
    counts = [
        torch.bincount(owners(position, graph.nodes[key].rank_ptr), minlength=size).tolist()
        for key, position in wanted.items()
    ]
    asked = swap(counts)
    return dict(zip(wanted, counts, strict=True)), dict(zip(wanted, asked, strict=True))


def swap(counts: list[list[int]]) -> list[list[int]]:
    """What the ranks count for this one, of what it counts for every rank."""
    came = all_to_all_counts(torch.tensor(counts).t().contiguous(), is_compared=True)
    swapped: list[list[int]] = came.t().tolist()
    return swapped


def _rows_there(graph: Graph, key: NodeKey, position: Tensor) -> Tensor:
    """Nodes as rows of their owners."""
    nodes = graph.nodes[key]
    firsts = torch.tensor(nodes.rank_ptr)
    return (position - firsts[owners(position, nodes.rank_ptr)]).to(nodes.wire)
