"""KONECT's files ``out.NAME``: edges with ids from 1, and in front of them what kind they are."""

from __future__ import annotations

import re
import warnings
from itertools import chain, islice
from pathlib import Path

import torch
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition.memmap import Scratch, edge_chunks, join_edges, smallest_and_largest
from pyg_sar.partition.sources.edge_text import edge_texts, read_edge_text
from pyg_sar.partition.sources.text_lines import is_konect, pieces
from pyg_sar.shard.files import is_of_system

_OTHERS = re.compile(
    r'\.(txt|tsv|csv|edges|edgelist|el|npz|mtx|graph|metis|parquet)(\.gz|\.bz2|\.zst)?$'
)
_FORMATS = ('sym', 'asym', 'bip')


def konect_file(path: Path) -> Path | None:
    """The file with the edges: `path`, or the one in an unpacked archive; None of anything else.

    It is called out.NAME; in a folder, or with a suffix such as .csv, it begins as KONECT's do.
    """
    if path.is_file() and path.name.startswith('out.') and not _OTHERS.search(path.name.lower()):
        return path
    files = [path] if path.is_file() and edge_texts(path) else sorted(path.glob('out.*'))
    is_one = len(files) == 1 and files[0].is_file() and _begins_as_konect(files[0])
    return files[0] if is_one else None


def _begins_as_konect(path: Path) -> bool:
    try:
        return any(map(is_konect, islice(pieces(path, 1 << 10), 1)))
    except Exception as error:  # Damaged files, which reading them tells.
        if is_of_system(error):
            raise
        return False


def read_konect(path: Path, scratch: Scratch) -> Data | HeteroData:
    """The graph: ids from 0 on, both directions of ``sym``, two types of nodes of ``bip``.

    The third column is ``edge_weight``, the fourth ``time`` in seconds since 1970.
    """
    found = read_edge_text([path], scratch, is_konect=True)
    words = found.comments[0].split() if found.comments else []
    if not words or words[0] not in _FORMATS:
        raise ValueError(
            f"expected '% sym', '% asym' or '% bip' in the first line of '{path}' (got "
            f'{" ".join(words)!r})'
        )
    sizes = [line.split() for line in found.comments[1:2] if re.fullmatch(r'[\d\s]+', line)]
    announced = [int(number) for number in sizes[0]] if sizes else []
    edge_index, attrs = found.arrays.pop('edge_index'), found.arrays
    num_edges = edge_index.size(1)
    if announced and announced[0] != num_edges:
        raise ValueError(
            f"expected {announced[0]} edges in '{path}', as its second line says (got {num_edges})"
        )
    bounds = [smallest_and_largest(ids) for ids in edge_index]
    if min(low for low, _ in bounds) < 1:
        raise ValueError(f"expected ids from 1 on in '{path}' (got {min(bounds)[0]})")
    edge_index -= 1
    if words[0] == 'bip':
        return _bipartite(edge_index, attrs, announced[1:3], [high for _, high in bounds], path)
    highest = max(high for _, high in bounds)
    data = Data(num_nodes=_size(announced[1:2], highest, path), edge_index=edge_index, **attrs)
    if words[0] == 'sym':
        _add_way_back(data, scratch)
        warnings.warn(
            f"'{path}' is undirected ('% sym'): every edge is there in both directions",
            stacklevel=3,
        )
    return data


def _size(announced: list[int], highest: int, path: Path) -> int:
    """The number of nodes: as the file says, or as the largest id."""
    if announced and announced[0] < highest:
        raise ValueError(
            f"expected ids up to {announced[0]} in '{path}', as its second line says (got "
            f'{highest})'
        )
    return announced[0] if announced else highest


def _bipartite(
    edge_index: torch.Tensor,
    attrs: dict[str, torch.Tensor],
    announced: list[int],
    highest: list[int],
    path: Path,
) -> HeteroData:
    data = HeteroData()
    for at, key in enumerate(('left', 'right')):
        data[key].num_nodes = _size(announced[at : at + 1], highest[at], path)
    store = data['left', 'to', 'right']
    store.edge_index = edge_index
    store.update(attrs)
    return data


def _add_way_back(data: Data, scratch: Scratch) -> None:
    """Appends the reverse of every edge but self loops, with its attributes."""
    edge_index, is_loop = data.edge_index, data.edge_index[0] == data.edge_index[1]
    ids = (~is_loop).nonzero().view(-1)
    there = ((src, dst) for _, src, dst in edge_chunks(edge_index))
    back = ((dst[src != dst], src[src != dst]) for _, src, dst in edge_chunks(edge_index))
    data.edge_index = join_edges(chain(there, back), 2 * edge_index.size(1), scratch)
    for name, values in list(data.items()):
        if isinstance(values, torch.Tensor) and name != 'edge_index':
            data[name] = torch.cat([values, values[ids]])
