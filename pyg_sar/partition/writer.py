"""From the part of every node to a partition folder, which appears complete or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partition import layout
from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.layout import COUNTS, EdgeGroups, NodeGroups, group_edges, group_nodes
from pyg_sar.partition.memmap import RowStream, chunks, edge_chunks, save_rows
from pyg_sar.partition.summary import PartitionSummary, summarize
from pyg_sar.shard import format as file_names
from pyg_sar.shard.csr import check_block_edges
from pyg_sar.shard.files import folder_checksums
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.shard.meta import EdgeInfo, Meta, NodeInfo, listed_files, meta_text, row_type
from pyg_sar.shard.node_names import write_node_names
from pyg_sar.utils.durable import put, remove_left, workshop
from pyg_sar.utils.installed import installed
from pyg_sar.utils.rng import hashed

Content = dict[str, tuple[int, ...]]
"""Of every file and folder in a folder what tells it from a later one, by its relative path."""


def target_folder(root: str | os.PathLike[str], *, force: bool) -> tuple[Path, Content]:
    """`root` without symbolic links, so that its parent is on the same file system; what is in it.

    Raises ValueError unless it does not exist, is empty, or with `force` holds a partition alone;
    and if this process is in it.
    """
    path = Path(os.path.realpath(root))
    if not path.exists():
        return path, {}
    if not path.is_dir():
        raise ValueError(f"'root' must be a folder (got the file '{root}')")
    if path.is_mount():
        raise ValueError(f"'root' must not be a mount point, but a folder in one (got '{root}')")
    with suppress(FileNotFoundError):  # the current folder is gone
        if Path.cwd().is_relative_to(path):
            raise ValueError(
                f"'root' must not hold the current folder, as a new folder takes its place (got "
                f"'{root}'): call this from '{path.parent}', with '{path.name}'"
            )
    if not any(path.iterdir()):
        return path, {}
    if not force:
        raise ValueError(
            f"'root' must not exist yet or be empty (got '{root}', which is not empty; "
            'pass force=True or --force to replace the partition in it)'
        )
    if not (path / file_names.META_FILE).is_file():
        raise ValueError(
            f"expected a partition to replace in '{root}' (got a folder without "
            f'{file_names.META_FILE}; delete it by hand if nothing in it is needed)'
        )
    content = _content(path)
    written = {file_names.META_FILE, *listed_files(path)}
    own = written | {str(folder) for name in written for folder in PurePosixPath(name).parents}
    others = [name for name in content if name not in own]
    if others:
        raise ValueError(
            f"expected a partition and nothing else in '{root}' (got {len(others)} more files and "
            f"folders, such as '{others[-1]}'): move them out, they would be deleted"
        )
    return path, content


def _content(root: Path) -> Content:
    """All that lies in a folder; of anything else, itself."""
    content: Content = {}
    is_folder = root.is_dir() and not root.is_symlink()
    for path in sorted(root.rglob('*')) if is_folder else [root]:
        with suppress(FileNotFoundError):
            of, name = path.lstat(), path.relative_to(root).as_posix()
            is_file = not stat.S_ISDIR(of.st_mode)
            content[name] = (of.st_mode, of.st_size, of.st_mtime_ns) if is_file else ()
    return content


def existing_parent(root: Path) -> Path:
    """The innermost folder around `root` that exists: on the file system that `root` will be on."""
    return next(parent for parent in root.parents if parent.exists())


@contextmanager
def replace_folder(root: Path, before: Content | None = None) -> Iterator[Path]:
    """Gives a temporary folder beside `root` that takes its place when the block ends well.

    On any exception the temporary folder is removed and `root` is as it was. What a killed process
    leaves the next one that writes to `root` removes. If at the end `root` is not as it was
    `before`, by default now, it stays, and a ValueError tells the name of the new folder.
    """
    before = _content(root) if before is None else before
    created = [parent for parent in root.parents if not parent.exists()]
    try:
        with workshop(root) as new:
            remove_left(root.parent, re.escape(root.name))
            yield new
            _put(new, root, before)
    except BaseException:
        for parent in created:
            with suppress(OSError):
                parent.rmdir()
        raise


def _put(new: Path, root: Path, before: Content) -> None:
    """Exchanges the folders, unless something has come to `root` or changed there meanwhile."""

    def came(folder: Path) -> list[str]:
        return [name for name, state in _content(folder).items() if before.get(name) != state]

    changed = came(root)
    if not changed:
        put(new, root, syncs=bool(before))  # of a first one checksums tell whether it is whole
        if changed := came(new):  # written a moment ago
            put(new, root)
    if changed:
        kept = root.with_name(new.parent.stem.removeprefix('.'))
        put(new, kept)
        raise ValueError(
            f"expected '{root}' as it was when the cut began (got '{changed[-1]}', written there "
            f"meanwhile): nothing was replaced, and the new partition is in '{kept}'"
        )


def write_partition(
    folder: Path,
    graph: TypedGraph,
    assignment: dict[NodeKey, Tensor],
    num_parts: int,
    *,
    sub_parts: dict[NodeKey, Tensor],
    provenance: dict[str, Any],
    command: list[str] | None,
    on_part: Callable[[], object],
) -> PartitionSummary:
    """Writes every file of a partition into an existing, empty folder.

    `assignment` and `sub_parts` have the part and sub-part of every node, integer [N], by type: the
    nodes of a part are in the order of sub-parts, then ids. `provenance` and `command` are for
    META.json. Raises ValueError if a part or a block is too large for 32-bit ids.
    """
    if num_parts == 1:  # Known before any pass.
        for relation in graph.relations.values():
            check_block_edges(relation.edge_index.size(1))
    nodes = {
        key: group_nodes(parts, num_parts, sub_parts[key]) for key, parts in assignment.items()
    }
    edges = {
        key: group_edges(r.edge_index, nodes[r.src], nodes[r.dst], graph.scratch)
        for key, r in graph.relations.items()
    }
    exchanges = {key: layout.find_halos(groups) for key, groups in edges.items()}
    for key, exchange in exchanges.items():
        _check_part_sizes(edges[key], exchange)
    for part in range(num_parts):
        _write_part(file_names.part_dir(folder, part), part, graph, nodes, edges, exchanges)
        on_part()
    map_type = torch.int16 if num_parts <= torch.iinfo(torch.int16).max else torch.int32
    for node_key, groups in nodes.items():
        parts = RowStream(groups.assignment, dtype=map_type)
        save_rows(parts, file_names.node_map_file(folder, node_key))
    for edge_key, edge_groups in edges.items():
        parts = RowStream(edge_groups.dst.assignment, edge_groups.edge_index[1], map_type)
        save_rows(parts, file_names.edge_map_file(folder, edge_key))

    for node_key, of_type in graph.nodes.items():
        if of_type.names is not None:
            write_node_names(file_names.node_names_file(folder, node_key), of_type.names)
    whole = {name: tensors for name, tensors in graph.whole.items() if tensors}
    if whole:
        save_rows(whole, folder / file_names.WHOLE_FILE)
    packages = ('pyg_sar', 'torch', 'torch_geometric', 'pymetis', 'kaminpar')
    meta = Meta(
        num_parts=num_parts,
        fingerprint=_fingerprint(graph, assignment, sub_parts),
        graph=_name_of(graph),
        nodes={
            key: NodeInfo(
                num_nodes=of_type.num_nodes,
                part_num_nodes=nodes[key].partptr.diff().tolist(),
                is_counted=of_type.is_counted,
                attrs={n: row_type(value) for n, value in of_type.attrs.items()},
                extra=of_type.extra,
            )
            for key, of_type in graph.nodes.items()
        },
        edges={
            key: EdgeInfo(
                src=relation.src,
                dst=relation.dst,
                num_edges=relation.edge_index.size(1),
                part_num_edges=exchanges[key].block_edges.sum(1).tolist(),
                halo_rows=exchanges[key].halo_rows.tolist(),
                block_edges=exchanges[key].block_edges.tolist(),
                attrs={n: row_type(value) for n, value in relation.attrs.items()},
                extra=relation.extra,
            )
            for key, relation in graph.relations.items()
        },
        graph_attrs=graph.attrs,
        notes={
            'partition': {
                **provenance,
                **{k: sum(g.counts[k] for g in edges.values()) for k in COUNTS},
            },
            'command': command,
            'versions': {name: installed(name) for name in packages},
            'dropped': {name: what for name, what in graph.dropped.items() if what},
        },
        checksums=folder_checksums(folder),
    )
    summary = summarize(meta)
    meta.notes['partition'].update(
        edge_cut=summary.edge_cut, communication_volume=summary.communication_volume
    )
    (folder / file_names.META_FILE).write_text(meta_text(meta), encoding='utf-8')
    return summary


def _check_part_sizes(edges: EdgeGroups, exchange: layout.Halos) -> None:
    largest = int((edges.src.partptr.diff() + exchange.halo_rows.sum(dim=1)).max())
    if largest > torch.iinfo(torch.int32).max:
        raise ValueError(
            f"'num_parts' must be larger: local ids are 32-bit (got a part of {largest} own and "
            'halo rows)'
        )
    check_block_edges(int(exchange.block_edges.max()))


def _write_part(
    folder: Path,
    part: int,
    graph: TypedGraph,
    nodes: dict[NodeKey, NodeGroups],
    edges: dict[EdgeKey, EdgeGroups],
    exchanges: dict[EdgeKey, layout.Halos],
) -> None:
    """Writes the files of one part."""
    content: dict[str, dict[Any, Any]] = {name: {} for name in file_names.PART_FILES}
    for node_key, node_groups in nodes.items():
        n_id = node_groups.n_id(part)
        # PyG's own partitions number the nodes of all types together here, which its lookups, by
        # ids within the type, do not expect. Its stores cannot read a type without rows.
        if n_id.numel() or not graph.is_hetero:
            feats = _feats(n_id, graph.nodes[node_key].attrs)
            content[file_names.NODE_FEATS_FILE][node_key] = feats
    indices = content[file_names.SAR_FILE]
    for edge_key, edge_groups in edges.items():
        sar, by_id = layout.part_layout(edge_groups, exchanges[edge_key], part, graph.scratch)
        indices[edge_key], content[file_names.GRAPH_FILE][edge_key] = sar, by_id
        e_id, attrs = by_id['edge_id'], graph.relations[edge_key].attrs
        if attrs and (e_id.numel() or not graph.is_hetero):
            content[file_names.EDGE_FEATS_FILE][edge_key] = _feats(e_id, attrs)
    for name, by_type in content.items():
        save_rows(by_type if graph.is_hetero else by_type.get(None, {}), folder / name)


def _feats(ids: Tensor, attrs: dict[str, Tensor]) -> dict[str, Any]:
    rows = {name: RowStream(values, ids) for name, values in attrs.items()}
    times = {name: rows.pop(name) for name in file_names.TIMES if name in rows}
    return {'global_id': ids, 'feats': rows, **({'times': times} if times else {})}


def _fingerprint(
    graph: TypedGraph, assignment: dict[NodeKey, Tensor], sub_parts: dict[NodeKey, Tensor]
) -> str:
    digest = hashlib.sha256()
    digest.update(f'{graph.num_nodes} {graph.num_edges}'.encode())
    if graph.is_hetero:
        sizes = [(key, nodes.num_nodes) for key, nodes in graph.nodes.items()]
        counts = [(key, r.edge_index.size(1)) for key, r in graph.relations.items()]
        digest.update(f' {sizes} {counts}'.encode())
    ends = (ids for r in graph.relations.values() for ids in r.edge_index)
    orders = [] if sub_parts is assignment else sub_parts.values()
    for tensor in [*assignment.values(), *ends, *orders]:
        for part in chunks(tensor):
            digest.update(part.to(torch.int64).numpy().data)
    return digest.hexdigest()


def _name_of(graph: TypedGraph) -> str:
    """Names a graph by the ids of its nodes and edges, in any order of edges and types."""
    facts = [f'{key!r} {nodes.num_nodes}' for key, nodes in graph.nodes.items()]
    for key, r in graph.relations.items():
        pairs = (
            src * graph.nodes[r.dst].num_nodes + dst for _, src, dst in edge_chunks(r.edge_index)
        )
        total = sum(int(hashed(0, of_chunk).sum()) for of_chunk in pairs)
        facts.append(f'{key!r} {r.edge_index.size(1)} {total % 2**64}')
    return hashlib.sha256('\n'.join(sorted(facts)).encode()).hexdigest()[:16]
