"""What ranks ask each other: in-edges that owners draw, rows of attributes, nodes and links.

Every question travels alike: how much each rank asks of each, then what, then the answers. The
tensors of a message have several dtypes and widths. They go as bytes, one after another, each from
a multiple of 16 on as its dtype asks for: a message costs the same however many are in it.

Ranks have just compared that they are at the same operation: nothing is compared here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.comm import all_to_all_counts, exchange_bytes
from pyg_sar.sampling.attributes import AttributeRows, Values
from pyg_sar.sampling.graph import LocalGraph
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey

_ALIGNMENT = 16

Parcel = tuple[Tensor, list[int], list[int]]
"""Rows, how many of them go to every rank, and how many come from every rank."""


class Traffic:
    """How much goes to every rank, and comes from every rank (collective: an all-to-all).

    Args:
        sent: By what it is, a number for every rank.
    """

    def __init__(self, sent: dict[Any, list[int]]) -> None:
        numbers = torch.tensor([*sent.values()]).t().contiguous()
        came = all_to_all_counts(numbers, is_compared=True).t().tolist()
        self.sent, self.came = sent, dict(zip(sent, came, strict=True))

    def question(self, key: Any, rows: Tensor) -> Parcel:
        """Rows that go as they were counted."""
        return rows, self.sent[key], self.came[key]

    def answer(self, key: Any, rows: Tensor) -> Parcel:
        """A row for each that came."""
        return rows, self.came[key], self.sent[key]


class Question(NamedTuple):
    """Nodes whose in-edges are to be drawn."""

    node: Tensor  # int64 ``[N]``: positions, or own rows where they are drawn
    state: Tensor  # what their draws follow from beside their id, int64 ``[N]``
    until: Tensor | None  # the time that edges may have, ``[N]``; None for any


class Drawn(NamedTuple):
    """In-edges that were drawn."""

    num: Tensor  # of every node, int64 ``[N]``
    source: Tensor  # positions of the sources, ``[E]``
    row: Tensor  # where the edges' attributes are, int64 ``[E]``; see :func:`attributes.take`


def ask_for_edges(
    graph: LocalGraph,
    attributes: AttributeRows,
    wanted: dict[NodeKey, Question],
    draw: Mapping[EdgeKey, Callable[[Question], Drawn]],
) -> dict[EdgeKey, tuple[Drawn, Values]]:
    """Has owners draw in-edges of their nodes, with attributes (collective: four all-to-alls).

    Args:
        graph: The own part of it.
        attributes: Those of edges travel with the edges.
        wanted: Other ranks' nodes in the order of their owners.
        draw: What draws edges of own nodes, by relation; the same relations on all ranks.
    """
    counts = _count(graph, {key: each.node for key, each in wanted.items()})
    came = send(
        [
            counts.question(key, tensor)
            for key, each in wanted.items()
            for tensor in (_rows_there(graph, key, each.node), each.state, each.until)
            if tensor is not None
        ]
    )
    asked = {
        key: Question(next(came).long(), next(came), None if each.until is None else next(came))
        for key, each in wanted.items()
    }
    end = {key: graph.edges[key].dst for key in draw}
    answers = {key: of_relation(asked[end[key]]) for key, of_relation in draw.items()}
    edges = Traffic(
        {
            key: [int(each.sum()) for each in torch.split(answer.num, counts.came[end[key]])]
            for key, answer in answers.items()
        }
    )
    parcels: list[Parcel] = []
    for key, answer in answers.items():
        parcels.append(counts.answer(end[key], answer.num.int()))
        parcels.append(edges.question(key, answer.source))
        for value in attributes.edges[key].values():
            parcels.append(edges.question(key, value.index_select(0, answer.row.to(value.device))))
    came, told = send(parcels), {}
    for key in draw:
        count, source = next(came).long(), next(came).long()
        values = {name: next(came) for name in attributes.edges[key]}
        told[key] = Drawn(count, source, -1 - torch.arange(source.numel())), values
    return told


def ask_for_rows(
    graph: LocalGraph, attributes: AttributeRows, wanted: dict[NodeKey, Tensor]
) -> dict[NodeKey, Values]:
    """Rows of the attributes of other ranks' nodes (collective: three all-to-alls).

    Args:
        graph: The own part of it.
        attributes: Those of nodes.
        wanted: By type positions, ascending.
    """
    counts = _count(graph, wanted)
    asked = send([counts.question(key, _rows_there(graph, key, at)) for key, at in wanted.items()])
    parcels = []
    for key, row in zip(wanted, asked, strict=True):
        for value in attributes.nodes[key].values():
            parcels.append(counts.answer(key, value.index_select(0, row.long().to(value.device))))
    came = send(parcels)
    return {key: {name: next(came) for name in attributes.nodes[key]} for key in wanted}


def _count(graph: LocalGraph, wanted: dict[NodeKey, Tensor]) -> Traffic:
    size = graph.world_size
    owners = {key: graph.nodes[key].owner(position) for key, position in wanted.items()}
    return Traffic(
        {k: torch.bincount(owner, minlength=size).tolist() for k, owner in owners.items()}
    )


def _rows_there(graph: LocalGraph, key: NodeKey, position: Tensor) -> Tensor:
    nodes = graph.nodes[key]
    firsts = torch.tensor(nodes.rank_ptr)
    return (position - firsts[nodes.owner(position)]).to(nodes.wire)


def send(parcels: Sequence[Parcel]) -> Iterator[Tensor]:
    """Of each parcel what comes, by the rank it comes from, on the CPU (collective).

    The first rows go to rank 0, the next ones to rank 1 ... All ranks have as many parcels, each of
    one dtype and width on all.
    """
    if len(parcels[0][1]) == 1:
        return iter([rows.cpu() for rows, _, _ in parcels])
    ranks = range(len(parcels[0][1]))
    row_bytes = [math.prod(rows.shape[1:]) * rows.element_size() for rows, _, _ in parcels]

    def sizes(counts: list[list[int]]) -> list[int]:
        """Bytes by rank."""
        each = list(zip(counts, row_bytes, strict=True))
        return [sum(_padded(n[rank] * row) for n, row in each) for rank in ranks]

    to, of = [to for _, to, _ in parcels], [of for _, _, of in parcels]
    parts = [torch.split(rows.cpu().contiguous(), n) for rows, n, _ in parcels]
    sent = torch.cat([piece for rank in ranks for part in parts for piece in _bytes(part[rank])])
    received = torch.empty(sum(sizes(of)), dtype=torch.uint8)
    came, went = ([sum(n[rank] for n in counts) for rank in ranks] for counts in (of, to))
    exchange_bytes(received, sent, sizes(of), sizes(to), (came, went), 'packed', True)
    out: list[list[Tensor]] = [[] for _ in parcels]
    start = 0
    for rank in ranks:
        for found, (rows, _, n), row in zip(out, parcels, row_bytes, strict=True):
            piece = received[start : start + n[rank] * row].view(rows.dtype)
            found.append(piece.view(n[rank], *rows.shape[1:]))
            start += _padded(n[rank] * row)
    return iter([torch.cat(found) for found in out])


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT


def _bytes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as bytes, and what fills up the last ones."""
    flat = rows.view(-1).view(torch.uint8)
    return flat, flat.new_zeros(-flat.numel() % _ALIGNMENT)
