"""Whether a partition folder holds a graph that is whole: every node, edge and exchanged row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.launch.info import wrong_files
from pyg_sar.shard import format as file_names
from pyg_sar.shard.files import load_tensors
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.shard.meta import Meta, read_meta
from pyg_sar.shard.parts import Part, read_part, rows_of


def verify_partition(root: str | Path) -> list[str]:
    """What is wrong with a partition folder, one sentence each; nothing if it is whole.

    - every file has the checksum that META.json names, and no file is missing or foreign
    - every node and every edge of the graph lies in exactly one part, an edge with its destination
    - local ids, in ``sar.pt``, and global ids, in ``graph.pt``, name the same edges
    - what a part reads from another one (halo) is what that one sends it (boundary), and all of it
      is used by some edge
    """
    root = Path(root)
    meta = read_meta(root)
    problems = wrong_files(root, meta)
    parts = []
    for part in range(meta.num_parts):
        try:
            parts.append(read_part(root, part, meta))
        except (ValueError, OSError) as error:
            problems.append(str(error))
    if len(parts) < meta.num_parts:
        return problems  # The rest compares parts.
    for key, node_info in meta.nodes.items():
        ids = [part.n_id[key] for part in parts]
        path, size = file_names.node_map_file(root, key), node_info.num_nodes
        problems += _wrong_cover(ids, size, path, f'node{_of(key)}', root)
    for relation, edge_info in meta.edges.items():
        ids = [part.index[relation]['e_id'] for part in parts]
        path, size = file_names.edge_map_file(root, relation), edge_info.num_edges
        problems += _wrong_cover(ids, size, path, f'edge{_of(relation)}', root)
    for part in range(meta.num_parts):
        for edge_key in meta.edges:
            problems += _wrong_exchange(parts, part, edge_key)
            problems += _wrong_edges(root, parts, part, edge_key, meta)
    return problems


def _wrong_cover(ids: list[Tensor], size: int, path: Path, name: str, root: Path) -> Iterator[str]:
    """Of ids by part: every one once, and where the map in `path` says."""
    owner = torch.full((size,), -1)
    for part, own in enumerate(ids):
        if own.numel() and (int(own.min()) < 0 or int(own.max()) >= size):
            yield f'part {part} has {name} ids beyond the {size} of the graph'
            return
        owner[own] = part
    count, missing = sum(own.numel() for own in ids), int((owner < 0).sum())
    if missing or count > size:
        # All `size` entries that are covered, counted with repetition, minus the distinct ones.
        repeated = count - (size - missing)
        yield f'of {size} {name}s {missing} lie in no part, and {repeated} more than once'
    try:
        told = load_tensors(path, Tensor, root=root)
    except (ValueError, OSError) as error:
        yield str(error)
        return
    if not torch.equal(told.long(), owner):
        yield f"'{path}' tells other parts of {name}s than the parts themselves"


def _wrong_exchange(parts: list[Part], part: int, key: EdgeKey) -> Iterator[str]:
    index = parts[part].index[key]
    for other, other_part in enumerate(parts):
        sent = rows_of(other_part.index[key], 'boundary', part)
        if not torch.equal(rows_of(index, 'halo', other), sent):
            yield f'part {part} reads other rows{_of(key)} from part {other} than that one sends'
    own = parts[part].n_id[None if key is None else key[0]].numel()
    used = torch.zeros(own + index['halo_pos'].numel(), dtype=torch.bool)
    used[index['src'].long()] = True
    if not bool(used[own:].all()):
        yield f'part {part} reads rows{_of(key)} that none of its edges starts from'


def _wrong_edges(
    root: Path, parts: list[Part], part: int, key: EdgeKey, meta: Meta
) -> Iterator[str]:
    """The edges by local ids against those by global ids."""
    path = file_names.part_dir(root, part) / file_names.GRAPH_FILE
    try:
        stored: dict[Any, Any] = load_tensors(path, dict, root=root)
        graph = stored if key is None else stored[key]
        expected = [graph[name] for name in ('row', 'col')]
    except (ValueError, OSError, LookupError, TypeError, RuntimeError) as error:
        yield f"'{path}' holds no graph of PyG's layout: {error}"
        return
    index, info = parts[part].index[key], meta.edges[key]
    halo = [
        other.n_id[info.src][rows_of(index, 'halo', number).long()]
        for number, other in enumerate(parts)
    ]
    sources = torch.cat([parts[part].n_id[info.src], *halo])
    found = [sources[index['src'].long()], parts[part].n_id[info.dst][index['dst'].long()]]
    if not all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)):
        sar = file_names.SAR_FILE
        yield f"the edges{_of(key)} of part {part} are others in '{sar}' than in '{path.name}'"


def _of(key: NodeKey | EdgeKey) -> str:
    return '' if key is None else f' of {key}'
