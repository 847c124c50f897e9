"""Graphs as METIS reads them (.graph, .metis): a line for every node, with its neighbours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from pyg_sar.partition.memmap import IN_MEMORY, MEMORY, Array, Scratch
from pyg_sar.partition.sources.pieces import PIECE, open_plain, whole_lines
from pyg_sar.shard.files import is_of_system, ordinary_file


def is_metis(path: Path) -> bool:
    """Whether a file is named as METIS's graphs are."""
    return re.search(r'\.(graph|metis)(\.gz|\.bz2)?$', path.name) is not None and path.is_file()


@dataclass(frozen=True)
class _Header:
    """The first line of a file that is no comment."""

    num_nodes: int
    num_edges: int  # each counted once
    has_sizes: bool
    num_weights: int  # of a node
    has_edge_weights: bool

    @property
    def num_first(self) -> int:
        """How many numbers of a line are of the node."""
        return self.has_sizes + self.num_weights

    @property
    def num_bytes(self) -> int:
        """What a line may take, with every edge in it."""
        numbers = self.num_first + 2 * self.num_edges * (1 + self.has_edge_weights)
        return (1 << 16) + 32 * numbers


def read_metis(path: Path, scratch: Scratch = MEMORY) -> dict[str, Any]:
    """Reads a graph file of METIS, a piece at a time, into scratch space: arrays by name.

    They are ``edge_index`` [2, E] with both directions, each in the line of its source,
    ``num_nodes``; and where the file has them ``edge_weight`` int64 [E], ``node_weight`` int64 [N]
    or [N, ncon], and ``node_size`` int64 [N].
    """
    ordinary_file(path)
    try:
        with open_plain(path) as file:
            header, line = _read_header(file, path)
            return _read(file, header, line, path, scratch)
    except Exception as error:  # Damaged archives: errors of gzip, zlib, ...
        if is_of_system(error) or isinstance(error, ValueError):
            raise
        raise ValueError(f"expected a whole file in '{path}' (got: {error})") from error


def _read_header(file: IO[bytes], path: Path) -> tuple[_Header, int]:
    """The header, and the number of the line after it."""
    line = 0
    while text := file.readline(PIECE):
        line += 1
        if not text.startswith(b'%') and text.strip():
            break
    words = text.split()
    fmt = words[2].decode('ascii', 'replace').zfill(3) if len(words) > 2 else '000'
    is_right = 2 <= len(words) <= 4 and all(re.fullmatch(rb'\d{1,18}', word) for word in words)
    if not is_right or not re.fullmatch('[01]{3}', fmt):
        got = text[:60].decode('ascii', 'replace').strip()
        raise ValueError(
            f"expected 'nodes edges [fmt [ncon]]', with fmt of the digits 0 and 1, in line "
            f"{line or 1} of '{path}' (got {got!r})"
        )
    has_sizes, has_weights, has_edge_weights = (digit == '1' for digit in fmt)
    num_weights = int(words[3]) if len(words) == 4 else int(has_weights)
    if (num_weights > 0) != has_weights:
        raise ValueError(
            f"expected weights of nodes in fmt where 'ncon' is given, and only there, in line "
            f"{line} of '{path}' (got fmt {fmt} and ncon {num_weights})"
        )
    num_nodes, num_edges = int(words[0]), int(words[1])
    return _Header(num_nodes, num_edges, has_sizes, num_weights, has_edge_weights), line + 1


def _read(
    file: IO[bytes], header: _Header, line: int, path: Path, scratch: Scratch
) -> dict[str, Any]:
    num_nodes, num_ends = header.num_nodes, 2 * header.num_edges
    _check_room(file, header, path)
    ids = torch.int32 if num_nodes < 1 << 31 else torch.int64
    edge_index = scratch.empty((2, num_ends), ids)
    out: dict[str, Any] = {'edge_index': edge_index, 'num_nodes': np.array(num_nodes)}
    if header.has_edge_weights:
        out['edge_weight'] = scratch.empty((num_ends,), torch.int64)
    if header.num_weights:
        out['node_weight'] = scratch.empty((num_nodes, header.num_weights), torch.int64)
    if header.has_sizes:
        out['node_size'] = scratch.empty((num_nodes,), torch.int64)
    node, end, there, back = 0, 0, 0, 0
    for piece in whole_lines(file, header.num_bytes, path, line=line):
        lines = _Lines.of(piece, line, path)
        line += len(lines.counts)
        numbers, counts = lines.numbers, lines.counts[lines.are_nodes]
        if node + len(counts) > num_nodes:
            lines.check_empty_after(num_nodes - node, path, num_nodes)
            counts = counts[: num_nodes - node]
        starts = np.cumsum(counts) - counts
        rest = counts - header.num_first
        step = 1 + header.has_edge_weights
        wrong = (rest < 0) | (rest % step != 0)
        if wrong.any():
            at = int(wrong.argmax())
            raise ValueError(
                f'expected {header.num_first} numbers of the node and {step} of every neighbour in '
                f"line {lines.number(at)} of '{path}' (got {counts[at]} numbers)"
            )
        nodes = slice(node, node + len(counts))
        if header.has_sizes:
            out['node_size'][nodes] = torch.from_numpy(numbers[starts])
        if header.num_weights:
            columns = starts[:, None] + header.has_sizes + np.arange(header.num_weights)
            out['node_weight'][nodes] = torch.from_numpy(numbers[columns])
        of_line = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(numbers)) - starts[of_line] - header.num_first
        is_end = (place >= 0) & (place % step == 0)
        src, dst = of_line[is_end] + node, numbers[is_end] - 1
        odd = (dst < 0) | (dst >= num_nodes)
        if odd.any():
            at = int(odd.argmax())
            raise ValueError(
                f'expected neighbours from 1 to {num_nodes} in line '
                f"{lines.number(int(src[at]) - node)} of '{path}' (got {dst[at] + 1})"
            )
        stop = end + len(dst)
        if stop > num_ends:
            at = lines.number(int(src[num_ends - end]) - node)
            raise ValueError(
                f"expected {num_ends} neighbours in '{path}', twice its {header.num_edges} edges "
                f'(got more, in line {at})'
            )
        edge_index[0, end:stop], edge_index[1, end:stop] = map(torch.from_numpy, (src, dst))
        weights = numbers[np.flatnonzero(is_end) + 1] if header.has_edge_weights else None
        if weights is not None:
            out['edge_weight'][end:stop] = torch.from_numpy(weights)
        there += _fingerprint(src, dst, weights)
        back += _fingerprint(dst, src, weights)
        node, end = node + len(counts), stop
    if node < num_nodes or end < num_ends:
        raise ValueError(
            f"expected {num_nodes} lines with {num_ends} neighbours in '{path}', each edge in two "
            f'lines (got {node} lines with {end} neighbours up to line {line - 1})'
        )
    if (there - back) % (1 << 64):
        _tell_one_way(edge_index, out.get('edge_weight'), path)
    if header.num_weights == 1:
        out['node_weight'] = out['node_weight'].view(-1)
    return out


def _check_room(file: IO[bytes], header: _Header, path: Path) -> None:
    """Checks that a file is as long as its header announces, before there is room for that."""
    # A sign and a space for each number, an end of line for each node.
    numbers = header.num_first * header.num_nodes
    numbers += 2 * header.num_edges * (1 + header.has_edge_weights)
    least = max(2 * numbers - 1, header.num_nodes - 1)
    if least <= IN_MEMORY:
        return
    at, size = file.tell(), 0
    while size < least and (piece := file.read(PIECE)):
        size += len(piece)
    file.seek(at)
    if size < least:
        raise ValueError(
            f'expected {header.num_nodes} lines with {2 * header.num_edges} neighbours in '
            f"'{path}', at least {least} bytes (got {size})"
        )


@dataclass(frozen=True)
class _Lines:
    """The numbers in a piece of a file."""

    numbers: Array  # int64 [all]
    counts: Array  # of every line
    are_nodes: Array  # bool, of every line: not those of comments
    first: int  # number of the first line

    @staticmethod
    def of(piece: bytes, first: int, path: Path) -> _Lines:
        """Reads whole lines."""
        signs = np.frombuffer(piece, np.uint8)
        ends = np.flatnonzero(signs == 10)
        begins = np.concatenate([[0], ends[:-1] + 1])
        are_nodes = signs[begins] != ord('%')
        if not are_nodes.all():
            is_comment = np.repeat(~are_nodes, np.diff(ends, prepend=-1))
            signs = np.where(is_comment & (signs != 10), np.uint8(32), signs)
        is_digit = (signs >= 48) & (signs <= 57)
        is_odd = ~is_digit & (signs != 32) & ((signs < 9) | (signs > 13))
        borders = np.flatnonzero(np.diff(is_digit, prepend=False))  # the piece ends with a line
        starts, stops = borders[::2], borders[1::2]
        is_long = stops - starts > 18
        if is_odd.any() or is_long.any():
            at = int(is_odd.argmax() if is_odd.any() else starts[is_long.argmax()])
            line = int(np.searchsorted(ends, at))
            got = piece[at : at + 24].split(b'\n')[0].decode('ascii', 'replace')
            raise ValueError(
                f"expected whole numbers of at most 18 digits in line {first + line} of '{path}' "
                f'(got {got!r})'
            )
        counts = np.diff(np.searchsorted(starts, ends), prepend=0)
        text = signs.tobytes()
        numbers = np.fromstring(text, np.int64, sep=' ') if len(starts) else np.empty(0, np.int64)
        return _Lines(numbers, counts, are_nodes, first)

    def number(self, node: int) -> int:
        """The number of the line of one of the nodes in the piece."""
        return self.first + int(np.flatnonzero(self.are_nodes)[node])

    def check_empty_after(self, nodes: int, path: Path, num_nodes: int) -> None:
        """Raises ValueError unless lines after those of so many nodes are empty."""
        after = np.flatnonzero(self.are_nodes)[nodes:]
        filled = after[self.counts[after] > 0]
        if len(filled):
            raise ValueError(
                f"expected {num_nodes} lines of nodes in '{path}' (got more: line "
                f'{self.first + filled[0]})'
            )


def _fingerprint(src: Array, dst: Array, weights: Array | None) -> int:
    """A sum of random numbers, one for each edge and weight, the same in every order of edges."""
    mixed = _mixed(src) * np.uint64(3) + _mixed(dst)
    mixed = mixed if weights is None else _mixed(mixed) + weights.view(np.uint64)
    return int(_mixed(mixed).sum(dtype=np.uint64))


def _mixed(values: Array) -> Array:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014)."""
    out = values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return out ^ (out >> np.uint64(31))


def _tell_one_way(edge_index: Tensor, weights: Tensor | None, path: Path) -> None:
    """Raises ValueError with an edge whose way back is missing, or has another weight."""
    src, dst = edge_index.long()
    values = torch.zeros_like(src) if weights is None else weights
    both = [torch.stack([*ends, values], 1) for ends in ((src, dst), (dst, src))]
    edges, which = torch.unique(torch.cat(both), dim=0, return_inverse=True)
    signs = torch.ones_like(which)
    signs[src.numel() :] = -1
    balance = torch.zeros(len(edges), dtype=torch.int64).index_add_(0, which, signs)
    u, v, weight = edges[int((balance > 0).nonzero()[0])].tolist()
    of = '' if weights is None else f' with the weight {weight}'
    raise ValueError(
        f"expected each edge in two lines of '{path}' (got node {v + 1}{of} in the line of node "
        f'{u + 1}, but not node {u + 1}{of} in the line of node {v + 1})'
    )
