"""Questions between ranks: in-edges that owners draw, rows of attributes, nodes and links.

The counts of every pair of ranks travel first, then the questions, then the answers. A message
holds all its tensors as bytes, of any dtypes and widths, so many tensors cost one message. A tensor
begins at a multiple of 16 bytes, where every dtype is aligned.

The caller has compared that all ranks are at one operation; nothing is compared here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyg_sar.comm.collectives import all_to_all_counts, exchange_bytes
from pyg_sar.loader.attributes import AttributeRows, Values
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.utils.unsigned import picked, signed

_ALIGNMENT = 16


class Parcel(NamedTuple):
    """Rows that go to ranks."""

    rows: Tensor
    at: Tensor | None  # which of them go, int64; None for all
    to: list[int]  # how many go to every rank
    of: list[int]  # how many come from every rank


class Traffic:
    """The numbers of rows that go to and come from every rank (collective: an all-to-all).

    `sent` has by key a number for every rank.
    """

    def __init__(self, sent: dict[Any, list[int]]) -> None:
        numbers = torch.tensor([*sent.values()]).t().contiguous()
        came = all_to_all_counts(numbers, is_compared=True).t().tolist()
        self.sent, self.came = sent, dict(zip(sent, came, strict=True))

    def question(self, key: Any, rows: Tensor, at: Tensor | None = None) -> Parcel:
        """A parcel of rows: to every rank as many as were counted under `key`."""
        return Parcel(rows, at, self.sent[key], self.came[key])

    def answer(self, key: Any, rows: Tensor, at: Tensor | None = None) -> Parcel:
        """A parcel of answers: a row for every row that came under `key`."""
        return Parcel(rows, at, self.came[key], self.sent[key])


class Question(NamedTuple):
    """Nodes whose in-edges are to be drawn."""

    node: Tensor  # int64 ``[N]``: positions, or own rows where they are drawn
    state: Tensor  # hashes from which their draws follow, int64 ``[N]``
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
) -> dict[EdgeKey, tuple[Drawn, list[Values]]]:
    """Has owners draw in-edges of their nodes, with attributes (collective: four all-to-alls).

    `wanted` are other ranks' nodes in the order of their owners. `draw` draws edges of own nodes,
    by relation; the same relations on all ranks.
    """
    counts = _count(graph, {key: question.node for key, question in wanted.items()})
    came = send(
        [
            counts.question(key, tensor)
            for key, question in wanted.items()
            for tensor in (_rows_there(graph, key, question.node), question.state, question.until)
            if tensor is not None
        ]
    )
    asked = {
        key: Question(next(came).long(), next(came), None if own.until is None else next(came))
        for key, own in wanted.items()
    }
    end = {key: graph.edges[key].dst for key in draw}
    answers = {key: of_relation(asked[end[key]]) for key, of_relation in draw.items()}
    edges = Traffic(
        {
            key: [int(num.sum()) for num in torch.split(answer.num, counts.came[end[key]])]
            for key, answer in answers.items()
        }
    )
    parcels: list[Parcel] = []
    for key, answer in answers.items():
        parcels.append(counts.answer(end[key], answer.num.int()))
        parcels.append(edges.question(key, answer.source))
        for value in attributes.edges[key].values():
            parcels.append(edges.question(key, value, answer.row))
    pieces, answered = send_in_pieces(parcels), {}
    for key in draw:
        count, source = (torch.cat(next(pieces)).long() for _ in range(2))
        drawn = Drawn(count, source, -1 - torch.arange(source.numel()))
        answered[key] = drawn, _by_rank(attributes.edges[key], pieces)
    return answered


def ask_for_rows(
    graph: LocalGraph, attributes: AttributeRows, wanted: dict[NodeKey, Tensor]
) -> dict[NodeKey, list[Values]]:
    """Rows of the attributes of other ranks' nodes, by rank (collective: three all-to-alls).

    `wanted` has by type positions, ascending.
    """
    counts = _count(graph, wanted)
    asked = send([counts.question(key, _rows_there(graph, key, at)) for key, at in wanted.items()])
    parcels = []
    for key, row in zip(wanted, asked, strict=True):
        for value in attributes.nodes[key].values():
            parcels.append(counts.answer(key, value, row.long()))
    pieces = send_in_pieces(parcels)
    return {key: _by_rank(attributes.nodes[key], pieces) for key in wanted}


def _by_rank(names: Iterable[str], pieces: Iterator[list[Tensor]]) -> list[Values]:
    """By rank, its rows of all attributes."""
    named = [[(name, piece) for piece in next(pieces)] for name in names]
    return [dict(of_rank) for of_rank in zip(*named, strict=True)]


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
    """The rows that come of each parcel, by the rank that sends them, on the CPU (collective).

    The first rows go to rank 0, the next ones to rank 1 ... All ranks have as many parcels, each of
    one dtype and width on all.
    """
    return map(torch.cat, send_in_pieces(parcels))


def send_in_pieces(parcels: Sequence[Parcel]) -> Iterator[list[Tensor]]:
    """As :func:`send`; of each parcel the rows of every rank, not yet joined."""
    parcels = [_on_host(p) for p in parcels]
    ranks = range(len(parcels[0].to))
    if len(ranks) == 1:
        return iter([[p.rows if p.at is None else p.rows[p.at]] for p in parcels])
    to, of = [p.to for p in parcels], [p.of for p in parcels]
    sent, goes = _room(parcels, to)
    for parcel, pieces in zip(parcels, goes, strict=True):
        parts = torch.split(parcel.rows if parcel.at is None else parcel.at, parcel.to)
        for piece, part in zip(pieces, parts, strict=True):
            if parcel.at is None:
                piece.copy_(part)
            else:
                torch.index_select(signed(parcel.rows), 0, part, out=signed(piece))
    received, comes = _room(parcels, of)
    came, went = ([sum(n[rank] for n in counts) for rank in ranks] for counts in (of, to))
    recv_sizes, send_sizes = _sizes(parcels, of), _sizes(parcels, to)
    exchange_bytes(received, sent, recv_sizes, send_sizes, (came, went), 'packed', True)
    return iter(comes)


def _on_host(parcel: Parcel) -> Parcel:
    """Rows of a device are selected there."""
    rows, at = parcel.rows, parcel.at
    if rows.device.type != 'cpu':
        rows = (rows if at is None else picked(rows, 0, at.to(rows.device))).cpu()
        at = None
    return parcel._replace(rows=rows.detach(), at=at)


def _sizes(parcels: Sequence[Parcel], counts: list[list[int]]) -> list[int]:
    """Bytes by rank."""
    row_bytes = [math.prod(p.rows.shape[1:]) * p.rows.element_size() for p in parcels]
    return [
        sum(_padded(n * row) for n, row in zip(of_rank, row_bytes, strict=True))
        for of_rank in zip(*counts, strict=True)
    ]


def _room(parcels: Sequence[Parcel], counts: list[list[int]]) -> tuple[Tensor, list[list[Tensor]]]:
    """Memory for `counts` rows of each parcel by rank, and views of these rows in it."""
    room, start = torch.empty(sum(_sizes(parcels, counts)), dtype=torch.uint8), 0
    pieces: list[list[Tensor]] = [[] for _ in parcels]
    for of_rank in zip(*counts, strict=True):
        for parts, parcel, n in zip(pieces, parcels, of_rank, strict=True):
            shape = n, *parcel.rows.shape[1:]
            end = start + math.prod(shape) * parcel.rows.element_size()
            parts.append(room[start:end].view(parcel.rows.dtype).view(shape))
            start += _padded(end - start)
            room[end:start] = 0
    return room, pieces


def _padded(size: int) -> int:
    return size + -size % _ALIGNMENT
