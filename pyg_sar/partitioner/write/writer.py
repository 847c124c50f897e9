"""From the part of every node to the files of a partition folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ground.versions import installed
from pyg_sar.partitioner.graph.typed import NodeSet, Relation, TypedGraph
from pyg_sar.partitioner.on_disk.mapped import trim
from pyg_sar.partitioner.on_disk.rows import RowStream, chunks
from pyg_sar.partitioner.on_disk.torch_archive import save_rows
from pyg_sar.partitioner.write import layout
from pyg_sar.partitioner.write.groups import EdgeGroups, NodeGroups, group_edges, group_nodes
from pyg_sar.partitioner.write.summary import PartitionSummary, summarize
from pyg_sar.shard.bags import check_block_edges
from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.checksums import folder_checksums
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.meta import EdgeInfo, Meta, NodeInfo, meta_text, row_type


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
    cover_rows = []
    for part in range(num_parts):
        folder_of_part = file_names.part_dir(folder, part)
        indices = _write_part(folder_of_part, part, graph, nodes, edges, exchanges)
        sizes = [[0] * num_parts]
        for key, relation in graph.relations.items():
            own, ends = counts[relation.src][part], counts[relation.dst][part]
            sizes.append(layout.cover_sizes(indices[key], own, ends))
        cover_rows.append([sum(of_part) for of_part in zip(*sizes, strict=True)])
        del indices
        on_part()
        trim()
    for node_key, groups in nodes.items():
        parts = RowStream(groups.assignment, dtype=torch.int64)
        save_rows(parts, file_names.node_map_file(folder, node_key))
    for edge_key, edge_groups in edges.items():
        parts = RowStream(edge_groups.dst.assignment, edge_groups.edge_index[1], torch.int64)
        save_rows(parts, file_names.edge_map_file(folder, edge_key))

    whole = {name: tensors for name, tensors in graph.whole.items() if tensors}
    if whole:
        save_rows(whole, folder / file_names.WHOLE_FILE)
    versions = {name: installed(name) for name in _VERSIONED}
    meta = Meta(
        num_parts=num_parts,
        fingerprint=_fingerprint(graph, assignment, sub_parts),
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
                part_num_edges=groups.edgeptr.diff().tolist(),
                halo_rows=exchanges[key].halo_rows.tolist(),
                block_edges=exchanges[key].block_edges.tolist(),
                attrs={n: row_type(value) for n, value in graph.relations[key].attrs.items()},
                extra=graph.relations[key].extra,
            )
            for key, groups in edges.items()
        },
        graph_attrs=graph.attrs,
        notes={
            'partition': {**provenance, 'cover_rows': cover_rows},
            'command': command,
            'versions': versions,
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
) -> dict[EdgeKey, dict[str, Tensor]]:
    """Writes the files of one part; gives the indices of every relation in it."""
    node_feats, node_attrs, n_ids = {}, {}, {}
    for node_key, node_groups in nodes.items():
        n_id = n_ids[node_key] = node_groups.n_id(part)
        attrs = {n: RowStream(v, n_id) for n, v in graph.nodes[node_key].attrs.items()}
        node_attrs[node_key] = attrs
        # PyG's store cannot read a type without rows; its features, no rows, lie with ours then.
        if n_id.numel() or not graph.is_hetero:
            x = {name: attrs.pop(name) for name in ('x',) if name in attrs}
            # PyG's own partitions number the nodes of all types together here, which its lookups,
            # by ids within the type, do not expect.
            node_feats[node_key] = {'global_id': n_id, 'feats': x}
            time = _time(graph.nodes[node_key].attrs, 'time')
            if time is not None:  # PyG's samplers look up the times of all nodes.
                node_feats[node_key]['time'] = time
    edge_feats, edge_attrs, indices = {}, {}, {}
    pyg_graph: dict[EdgeKey, dict[str, Any]] = {}
    for edge_key, edge_groups in edges.items():
        sar, by_id = layout.part_layout(edge_groups, exchanges[edge_key], part, graph.scratch)
        relation = graph.relations[edge_key]
        pyg_graph[edge_key] = _sort_by_time(by_id, relation, graph.nodes[relation.src])
        indices[edge_key] = sar
        e_id = sar['e_id']
        attrs = {n: RowStream(v, e_id) for n, v in relation.attrs.items()}
        edge_attrs[edge_key] = attrs
        time = _time(relation.attrs, *_EDGE_TIMES)
        names = [name for name in ('edge_attr',) if name in attrs]
        if e_id.numel() == 0 and graph.is_hetero:
            continue
        if time is not None:
            # By position, in the order of PyG's edges: ours stay with the other attributes.
            in_order = pyg_graph[edge_key]['edge_id']
            edge_feats[edge_key] = {
                'global_id': in_order,
                'feats': {name: RowStream(relation.attrs[name], in_order) for name in names},
                'edge_time': RowStream(time, in_order),
            }
        elif names:
            feats = {name: attrs.pop(name) for name in names}
            edge_feats[edge_key] = {'global_id': e_id, 'feats': feats}
    if graph.is_hetero:
        of_part: dict[str, Any] = {'n_id': n_ids, 'edges': indices}
    else:
        of_part = {'n_id': n_ids[None], **indices[None]}
    content: dict[str, dict[Any, Any]] = {
        file_names.GRAPH_FILE: pyg_graph,
        file_names.NODE_FEATS_FILE: node_feats,
        file_names.EDGE_FEATS_FILE: edge_feats,
        file_names.NODE_ATTRS_FILE: node_attrs,
        file_names.EDGE_ATTRS_FILE: edge_attrs,
    }
    if not graph.is_hetero:
        content = {name: by_type.get(None, {}) for name, by_type in content.items()}
    for name in file_names.PART_FILES:
        save_rows({**content, file_names.SAR_FILE: of_part}[name], folder / name)
    return indices


_EDGE_TIMES = ('edge_time', 'time')
"""The names that PyG takes for the time of an edge."""


def _time(attrs: dict[str, Tensor], *names: str) -> Tensor | None:
    """The first of these attributes that can be sorted by; one of another kind is no time."""
    for name in names:
        values = attrs.get(name)
        if values is None or values.dim() != 1 or values.is_complex():
            continue
        if not values.is_floating_point() or values.element_size() > 1:  # float8 has no order
            return values
    return None


def _sort_by_time(graph: dict[str, Any], relation: Relation, src_nodes: NodeSet) -> dict[str, Any]:
    """What ``graph.pt`` holds of a relation, sorted by (destination, time) for PyG's samplers.

    They read ``edge_feats.pt`` by position in this order. The time is that of the edge, or else of
    its source; without either the order stays.
    """
    of_edges, of_nodes = _time(relation.attrs, *_EDGE_TIMES), _time(src_nodes.attrs, 'time')
    if of_edges is not None:
        times = of_edges[graph['edge_id']]
    elif of_nodes is not None:
        times = of_nodes[graph['row']]
    else:
        return graph
    order = torch.argsort(times, stable=True)
    order = order[torch.argsort(graph['col'][order], stable=True)]
    return {**graph, **{name: graph[name][order] for name in ('edge_id', 'row', 'col')}}


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


_VERSIONED = ('pyg_sar', 'torch', 'torch_geometric', 'pymetis', 'kaminpar')
