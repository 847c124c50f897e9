"""From the part of every node to the files of a partition folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.partition import layout
from pyg_sar.partition.graph import TypedGraph
from pyg_sar.partition.layout import EdgeGroups, NodeGroups, group_edges, group_nodes
from pyg_sar.partition.memmap import RowStream, chunks, edge_chunks, save_rows
from pyg_sar.partition.summary import PartitionSummary, summarize
from pyg_sar.shard import format as file_names
from pyg_sar.shard.csr import check_block_edges
from pyg_sar.shard.files import folder_checksums
from pyg_sar.shard.format import EdgeKey, NodeKey
from pyg_sar.shard.meta import EdgeInfo, Meta, NodeInfo, meta_text, row_type
from pyg_sar.utils.installed import installed
from pyg_sar.utils.rng import hashed


def write_partition(
    folder: Path,
    graph: TypedGraph,
    assignment: dict[NodeKey, Tensor],
    num_parts: int,
    *,
    sub_parts: dict[NodeKey, Tensor] | None = None,
    provenance: dict[str, Any],
    command: list[str] | None = None,
    on_part: Callable[[], object] = lambda: None,
) -> PartitionSummary:
    """Writes every file of a partition into an existing, empty folder.

    `assignment` and `sub_parts` have the part and sub-part of every node, integer [N], by type: by
    sub-parts the nodes of a part are in order, then by id. Parts may be empty. `provenance`, how
    the assignment came about, and `command` are for META.json. `on_part` is called after every
    part. Raises ValueError if a part or a block is too large for 32-bit ids.
    """
    if num_parts == 1:  # Known before any pass.
        for relation in graph.relations.values():
            check_block_edges(relation.edge_index.size(1))
    sub_parts = sub_parts or assignment
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
    counts = {key: groups.partptr.diff().tolist() for key, groups in nodes.items()}
    for part in range(num_parts):
        folder_of_part = file_names.part_dir(folder, part)
        _write_part(folder_of_part, part, graph, nodes, edges, exchanges)
        on_part()
    map_type = torch.int16 if num_parts <= torch.iinfo(torch.int16).max else torch.int32
    for node_key, groups in nodes.items():
        parts = RowStream(groups.assignment, dtype=map_type)
        save_rows(parts, file_names.node_map_file(folder, node_key))
    for edge_key, edge_groups in edges.items():
        parts = RowStream(edge_groups.dst.assignment, edge_groups.edge_index[1], map_type)
        save_rows(parts, file_names.edge_map_file(folder, edge_key))

    whole = {name: tensors for name, tensors in graph.whole.items() if tensors}
    if whole:
        save_rows(whole, folder / file_names.WHOLE_FILE)
    versions = {name: installed(name) for name in _VERSIONED}
    meta = Meta(
        num_parts=num_parts,
        fingerprint=_fingerprint(graph, assignment, sub_parts),
        graph=_name_of(graph),
        nodes={
            key: NodeInfo(
                num_nodes=groups.num_nodes,
                part_num_nodes=counts[key],
                attrs={n: row_type(value) for n, value in graph.nodes[key].attrs.items()},
                extra=graph.nodes[key].extra,
            )
            for key, groups in nodes.items()
        },
        edges={
            key: EdgeInfo(
                src=graph.relations[key].src,
                dst=graph.relations[key].dst,
                num_edges=groups.edge_index.size(1),
                part_num_edges=exchanges[key].block_edges.sum(1).tolist(),
                halo_rows=exchanges[key].halo_rows.tolist(),
                block_edges=exchanges[key].block_edges.tolist(),
                attrs={n: row_type(value) for n, value in graph.relations[key].attrs.items()},
                extra=graph.relations[key].extra,
            )
            for key, groups in edges.items()
        },
        graph_attrs=graph.attrs,
        notes={
            'partition': provenance,
            'command': command,
            'versions': versions,
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


_VERSIONED = ('pyg_sar', 'torch', 'torch_geometric', 'pymetis', 'kaminpar')
