"""META.json: what a partition folder says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pyg_sar.shard.format.file_names import FORMAT_VERSION, META_FILE, EdgeKey, NodeKey
from pyg_sar.shard.format.meta_checks import (
    check_attr_names,
    check_entry,
    check_fields,
    check_types,
)
from pyg_sar.shard.format.meta_text import as_text, read_content


@dataclass(frozen=True)
class NodeInfo:
    """What META.json says of one type of nodes.

    Attributes:
        num_nodes: Number of nodes.
        part_num_nodes: Own nodes of every part.
        attrs: dtype and row shape of every node attribute, by name.
        extra: Values that belong to the type, by name.
    """

    num_nodes: int
    part_num_nodes: list[int]
    attrs: dict[str, Any]
    extra: dict[str, Any]


@dataclass(frozen=True)
class EdgeInfo:
    """What META.json says of one relation.

    Attributes:
        src: Type of the sources.
        dst: Type of the destinations.
        num_edges: Number of edges.
        part_num_edges: Edges of every part, those into its own nodes.
        halo_rows: ``halo_rows[p][q]`` rows that part p reads from part q.
        block_edges: ``block_edges[p][q]`` edges from part q into part p.
        attrs: dtype and row shape of every edge attribute, by name.
        extra: Values that belong to the relation, by name.
    """

    src: NodeKey
    dst: NodeKey
    num_edges: int
    part_num_edges: list[int]
    halo_rows: list[list[int]]
    block_edges: list[list[int]]
    attrs: dict[str, Any]
    extra: dict[str, Any]


@dataclass(frozen=True)
class Meta:
    """What META.json says of the partition.

    Attributes:
        num_parts: Number of parts P.
        is_hetero: Whether types have names.
        fingerprint: Names the partition.
        nodes: The types of nodes.
        edges: The relations.
        graph_attrs: Values that belong to the graph, by name.
    """

    num_parts: int
    is_hetero: bool
    fingerprint: str
    nodes: dict[NodeKey, NodeInfo]
    edges: dict[EdgeKey, EdgeInfo]
    graph_attrs: dict[str, Any]


_NODE_FIELDS = {'num_nodes': int, 'part_num_nodes': list, 'node_attrs': dict}
_EDGE_FIELDS = {
    'num_edges': int,
    'part_num_edges': list,
    'halo_rows': list,
    'block_edges': list,
    'edge_attrs': dict,
}


def write_meta(
    root: str | Path, meta: Meta, notes: dict[str, Any], checksums: Mapping[str, str]
) -> None:
    """Writes META.json: PyG's keys, and ours under ``"pyg_sar"``.

    Args:
        root: The partition folder.
        meta: What the loader reads.
        notes: More of ours, for people to read.
        checksums: SHA-256 of every other file, by its path in the folder.
    """
    sizes = [info.num_nodes for info in meta.nodes.values()]
    pyg = {
        'num_parts': meta.num_parts,
        'node_types': list(meta.nodes) if meta.is_hetero else None,
        'edge_types': list(meta.edges) if meta.is_hetero else None,
        'node_offset': [0, *accumulate(sizes)][:-1] if meta.is_hetero else None,
        'is_hetero': meta.is_hetero,
        'is_sorted': True,
    }
    nodes, edges = [], []
    for node_key, node_info in meta.nodes.items():
        fields = {name: _field(node_info, name) for name in _NODE_FIELDS}
        nodes.append({'type': node_key, 'graph_attrs': node_info.extra, **fields})
    for edge_key, edge_info in meta.edges.items():
        fields = {name: _field(edge_info, name) for name in _EDGE_FIELDS}
        edges.append({'type': edge_key, 'graph_attrs': edge_info.extra, **fields})
    types = {
        'nodes': nodes,
        'edges': edges,
        'num_nodes': sum(sizes),
        'num_edges': sum(info.num_edges for info in meta.edges.values()),
    }
    ours = {
        **notes,
        **(types if meta.is_hetero else {**nodes[0], **edges[0]}),
        'format_version': FORMAT_VERSION,
        'fingerprint': meta.fingerprint,
        'graph_attrs': meta.graph_attrs,
        'checksums': dict(checksums),
    }
    if not meta.is_hetero:
        del ours['type']
    (Path(root) / META_FILE).write_text(as_text({**pyg, 'pyg_sar': ours}), encoding='utf-8')


def with_node_attrs(
    root: str | Path, attrs: dict[str, Any], checksums: Mapping[str, str | None]
) -> str:
    """The text of a homogeneous partition's META.json with other node attributes.

    Args:
        root: The partition folder.
        attrs: dtype and row shape of every node attribute, by name.
        checksums: New checksums by path; None where a file has none for now.
    """
    content = read_content(root)
    ours = content['pyg_sar']
    ours['node_attrs'] = attrs
    known = {**ours.get('checksums', {}), **checksums}
    ours['checksums'] = {name: value for name, value in known.items() if value is not None}
    return as_text(content)


def _field(info: NodeInfo | EdgeInfo, name: str) -> Any:
    return info.attrs if name.endswith('_attrs') else getattr(info, name)


def read_meta(root: str | Path) -> Meta:
    """Reads and checks META.json.

    Args:
        root: The partition folder.

    Returns:
        What it says, complete and consistent with the number of parts.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If META.json is not one that this version of pyg_sar reads.
    """
    root = Path(root)
    path = root / META_FILE
    meta = read_content(root)
    ours = meta['pyg_sar']
    if ours.get('format_version') != FORMAT_VERSION:
        raise ValueError(
            f"expected format version {FORMAT_VERSION} in '{path}' "
            f'(got {ours.get("format_version")!r}); partition the graph again'
        )
    num_parts, is_hetero = meta.get('num_parts'), bool(meta.get('is_hetero'))
    if type(num_parts) is not int or num_parts < 1:
        raise ValueError(f"expected a positive int 'num_parts' in '{path}' (got {num_parts!r})")
    check_fields(path, ours, {'fingerprint': str, 'graph_attrs': dict})
    if is_hetero:
        check_fields(path, ours, {'nodes': list, 'edges': list})
    nodes = _read_nodes(path, ours['nodes'] if is_hetero else [ours], num_parts, is_hetero)
    edges = _read_edges(path, ours['edges'] if is_hetero else [ours], num_parts, is_hetero)
    for edge_info in edges.values():
        if edge_info.src not in nodes or edge_info.dst not in nodes:
            raise ValueError(
                f"expected relations between node types {list(nodes)} in '{path}' "
                f'(got {list(edges)})'
            )
    _check_names(path, nodes, edges, ours['graph_attrs'])
    return Meta(num_parts, is_hetero, ours['fingerprint'], nodes, edges, ours['graph_attrs'])


def _check_names(
    path: Path,
    nodes: dict[NodeKey, NodeInfo],
    edges: dict[EdgeKey, EdgeInfo],
    graph_attrs: dict[str, Any],
) -> None:
    """Checks that names are names, and that no attribute takes the place of another."""
    check_types(path, [name for key in edges if key is not None for name in key])
    check_types(path, [key for key in nodes if key is not None])
    infos: list[NodeInfo | EdgeInfo] = [*nodes.values(), *edges.values()]
    by_type = [[*info.attrs, *info.extra] for info in infos]
    if None in nodes:  # they are those of one Data
        check_attr_names(path, [*graph_attrs, *(name for names in by_type for name in names)])
        return
    for names in by_type:
        check_attr_names(path, names)
    check_attr_names(path, [*graph_attrs])
    if nodes.keys() & graph_attrs.keys():
        raise ValueError(f"expected no 'graph_attrs' named as a type in '{path}' (got such)")


def _read_nodes(
    path: Path, entries: list[Any], num_parts: int, is_hetero: bool
) -> dict[NodeKey, NodeInfo]:
    found: dict[NodeKey, NodeInfo] = {}
    for entry in entries:
        check_entry(path, entry, _NODE_FIELDS, num_parts)
        key, extra = None, {}
        if is_hetero:
            check_fields(path, entry, {'type': str, 'graph_attrs': dict})
            key, extra = entry['type'], entry['graph_attrs']
        if key in found:
            raise ValueError(f"expected every type once in '{path}' (got '{key}' again)")
        found[key] = NodeInfo(
            entry['num_nodes'], entry['part_num_nodes'], entry['node_attrs'], extra
        )
    return found


def _read_edges(
    path: Path, entries: list[Any], num_parts: int, is_hetero: bool
) -> dict[EdgeKey, EdgeInfo]:
    found: dict[EdgeKey, EdgeInfo] = {}
    for entry in entries:
        check_entry(path, entry, _EDGE_FIELDS, num_parts)
        key: EdgeKey = None
        src, dst, extra = None, None, {}
        if is_hetero:
            check_fields(path, entry, {'type': list, 'graph_attrs': dict})
            names = entry['type']
            if len(names) != 3 or not all(isinstance(name, str) for name in names):
                raise ValueError(f"expected three names of a relation in '{path}' (got {names})")
            src, relation, dst = names
            key, extra = (src, relation, dst), entry['graph_attrs']
        if key in found:
            raise ValueError(f"expected every relation once in '{path}' (got {key} again)")
        found[key] = EdgeInfo(
            src,
            dst,
            entry['num_edges'],
            entry['part_num_edges'],
            entry['halo_rows'],
            entry['block_edges'],
            entry['edge_attrs'],
            extra,
        )
    return found
