"""META.json: what a partition folder says of itself.

It is read once, into :class:`Meta`, and checked in full, whoever wrote it. It holds the checksums
of all other files, and one of itself. docs/format.md describes every key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.files import read_json
from pyg_sar.shard.format import FORMAT_VERSION, META_FILE, EdgeKey, NodeKey, type_name

_NOT_ATTRS = frozenset({'edge_index', 'n_id', 'e_id', 'num_nodes'})
"""Names that the loader adds to the attributes."""


@dataclass(frozen=True)
class NodeInfo:
    """What META.json says of one type of nodes."""

    num_nodes: int
    part_num_nodes: list[int]  # own nodes of every part
    is_counted: bool  # whether PyG counts the rows of an attribute, as nobody has set num_nodes
    attrs: dict[str, Any]  # dtype and row shape of every node attribute, by name
    extra: dict[str, Any]  # values that belong to the type, by name


@dataclass(frozen=True)
class EdgeInfo:
    """What META.json says of one relation."""

    src: NodeKey
    dst: NodeKey
    num_edges: int
    part_num_edges: list[int]  # edges of every part, those into its own nodes
    halo_rows: list[list[int]]  # ``halo_rows[p][q]`` rows that part p reads from part q
    block_edges: list[list[int]]  # ``block_edges[p][q]`` edges from part q into part p
    attrs: dict[str, Any]  # dtype and row shape of every edge attribute, by name
    extra: dict[str, Any]  # values that belong to the relation, by name


@dataclass(frozen=True)
class Meta:
    """What META.json says of the partition."""

    num_parts: int
    fingerprint: str  # names the partition
    nodes: dict[NodeKey, NodeInfo]
    edges: dict[EdgeKey, EdgeInfo]
    graph_attrs: dict[str, Any]  # values that belong to the graph, by name
    # For people: how the partition came about, command line, versions, and what was dropped.
    notes: dict[str, Any] = field(default_factory=dict)
    # SHA-256 of every other file, by its path in the folder.
    checksums: dict[str, str] = field(default_factory=dict)
    # Whether META.json has the checksum of its own that was written into it.
    is_unchanged: bool = True
    graph: str = ''  # names the graph, however it is cut

    @property
    def is_hetero(self) -> bool:
        """Whether types have names."""
        return None not in self.nodes


def row_type(value: Tensor) -> dict[str, Any]:
    """What META.json says of a tensor with a row for every node or edge."""
    return {'dtype': str(value.dtype).removeprefix('torch.'), 'shape': list(value.shape[1:])}


def meta_text(meta: Meta) -> str:
    """The text of META.json: PyG's keys, and ours under ``"pyg_sar"``."""
    nodes = [_entry(key, info, 'node_attrs') for key, info in meta.nodes.items()]
    edges = [_entry(key, info, 'edge_attrs') for key, info in meta.edges.items()]
    sizes = [info.num_nodes for info in meta.nodes.values()]
    if meta.is_hetero:
        types: dict[str, Any] = {'nodes': nodes, 'edges': edges, 'num_nodes': sum(sizes)}
        types['num_edges'] = sum(info.num_edges for info in meta.edges.values())
    else:
        types = {**nodes[0], **edges[0]}
        del types['type']
    ours = {
        **meta.notes,
        **types,
        'format_version': FORMAT_VERSION,
        'fingerprint': meta.fingerprint,
        'graph': meta.graph,
        'graph_attrs': meta.graph_attrs,
        'checksums': meta.checksums,
    }
    return signed(
        {
            'num_parts': meta.num_parts,
            'node_types': list(meta.nodes) if meta.is_hetero else None,
            'edge_types': list(meta.edges) if meta.is_hetero else None,
            'node_offset': [0, *accumulate(sizes)][:-1] if meta.is_hetero else None,
            'is_hetero': meta.is_hetero,
            'is_sorted': False,
            'pyg_sar': ours,
        }
    )


def _entry(key: NodeKey | EdgeKey, info: NodeInfo | EdgeInfo, attrs: str) -> dict[str, Any]:
    values = {name: value for name, value in vars(info).items() if name not in ('src', 'dst')}
    return {'type': key, attrs: values.pop('attrs'), 'graph_attrs': values.pop('extra'), **values}


def signed(content: dict[str, Any]) -> str:
    """The text of META.json, with a checksum of all else in it."""
    content['pyg_sar']['checksum'] = _checksum(content)
    return json.dumps(content, indent=1, sort_keys=True) + '\n'


def _checksum(content: dict[str, Any]) -> str:
    ours = {name: value for name, value in content['pyg_sar'].items() if name != 'checksum'}
    text = json.dumps({**content, 'pyg_sar': ours}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _ours(content: Any) -> dict[str, Any] | None:
    ours = content.get('pyg_sar') if isinstance(content, dict) else None
    return ours if isinstance(ours, dict) else None


def listed_files(root: str | Path) -> set[str]:
    """The files that META.json lists, of a partition of any format; none of another program's."""
    checksums = (_ours(read_json(root)) or {}).get('checksums')
    return set(checksums) if isinstance(checksums, dict) else set()


def read_meta(root: str | Path) -> Meta:
    """Reads META.json of a partition folder and checks it: complete, and consistent in itself."""
    path = Path(root) / META_FILE
    content = read_json(root)
    ours = _ours(content)
    if ours is None:
        raise ValueError(
            f"expected the key 'pyg_sar' in '{path}' (got a folder of another program, such as "
            'torch_geometric.distributed; cut its graph by `python -m pyg_sar.partition`)'
        )
    version = ours.get('format_version')
    if version != FORMAT_VERSION:
        raise ValueError(
            f"expected format version {FORMAT_VERSION} in '{path}' (got a partition of "
            f'version {version!r}, which another release of pyg_sar wrote); '
            'partition the graph again'
        )
    _check(path, content, {'num_parts': _COUNT, 'is_hetero': bool})
    num_parts, is_hetero = content['num_parts'], content['is_hetero']
    _check(path, ours, _KEYS)
    alone = [{**ours, 'type': None, 'graph_attrs': {}}]
    types = ours if is_hetero else {'nodes': alone, 'edges': alone}
    _check(path, types, {'nodes': list, 'edges': list})
    nodes: dict[NodeKey, NodeInfo] = {}
    for entry in types['nodes']:
        _check(path, entry, {**_NODE_KEYS, 'type': str if is_hetero else type(None)}, num_parts)
        nodes[entry['type']] = NodeInfo(*(entry[name] for name in _NODE_KEYS))
    edges: dict[EdgeKey, EdgeInfo] = {}
    for entry in types['edges']:
        kind = _RELATION if is_hetero else type(None)
        _check(path, entry, {**_EDGE_KEYS, 'type': kind}, num_parts)
        relation = tuple(entry['type']) if is_hetero else None
        src, dst = relation[::2] if relation is not None else (None, None)
        edges[relation] = EdgeInfo(src, dst, *(entry[name] for name in _EDGE_KEYS))
    meta = Meta(
        num_parts=num_parts,
        fingerprint=ours['fingerprint'],
        nodes=nodes,
        edges=edges,
        graph_attrs=ours['graph_attrs'],
        notes={name: ours.get(name) for name in ('partition', 'command', 'versions', 'dropped')},
        checksums=ours['checksums'],
        is_unchanged=ours.get('checksum') == _checksum(content),
        graph=ours['graph'],
    )
    for holds, rule, got in _rules(meta, types):
        if not holds:
            raise ValueError(f"expected {rule} in '{path}' (got {got!r:.200})")
    return meta


_COUNT, _RELATION = 'a count', 'three names'
_ROWS = {'dtype': str, 'shape': [_COUNT]}
_KEYS = {
    **dict.fromkeys(('fingerprint', 'graph'), str),
    **dict.fromkeys(('graph_attrs', 'checksums', 'partition', 'versions'), dict),
}
_NODE_KEYS = {
    'num_nodes': _COUNT,
    'part_num_nodes': (_COUNT,),
    'is_counted': bool,
    'node_attrs': _ROWS,
    'graph_attrs': dict,
}
_EDGE_KEYS = {
    'num_edges': _COUNT,
    'part_num_edges': (_COUNT,),
    'halo_rows': ((_COUNT,),),
    'block_edges': ((_COUNT,),),
    'edge_attrs': _ROWS,
    'graph_attrs': dict,
}
"""What the value of every key has to be: of a type; an int >= 0; three names in a list; a list of
such things; in a tuple, a list with one for each part; in a dict, dicts with these keys by any
names."""


def _fits(value: Any, kind: Any, num_parts: int) -> bool:
    if kind is _COUNT:
        return type(value) is int and value >= 0
    if kind is _RELATION:
        return _fits(value, [str], num_parts) and len(value) == 3
    if isinstance(kind, dict):
        rows = value.values() if type(value) is dict else [None]
        return all(
            type(row) is dict and all(_fits(row.get(k), v, num_parts) for k, v in kind.items())
            for row in rows
        )
    if isinstance(kind, (list, tuple)):
        is_list = type(value) is list and (isinstance(kind, list) or len(value) == num_parts)
        return is_list and all(_fits(item, kind[0], num_parts) for item in value)
    return type(value) is kind


def _check(path: Path, entry: Any, kinds: dict[str, Any], num_parts: int = 1) -> None:
    for key, kind in kinds.items():
        value = entry.get(key) if isinstance(entry, dict) else None
        if not _fits(value, kind, num_parts):
            what = kind.__name__ if isinstance(kind, type) else f'{kind} ({num_parts} parts)'
            raise ValueError(f"expected {what} for '{key}' in '{path}' (got {value!r:.200})")


def _rules(meta: Meta, types: dict[str, Any]) -> Iterator[tuple[bool, str, Any]]:
    """For every rule on values that must fit together: whether it holds, its words, a value."""
    yield meta.num_parts > 0, "a positive 'num_parts'", meta.num_parts
    yield len(meta.nodes) == len(types['nodes']), 'every type of nodes once', types['nodes']
    yield len(meta.edges) == len(types['edges']), 'every relation once', types['edges']
    dropped = meta.notes.get('dropped') or {}
    are_texts = type(dropped) is dict and all(
        type(texts) is dict and all(type(text) is str for text in texts.values())
        for texts in dropped.values()
    )
    yield are_texts, "texts in dicts for 'dropped'", dropped
    infos: list[NodeInfo | EdgeInfo] = [*meta.nodes.values(), *meta.edges.values()]
    groups = [[*info.attrs, *info.extra] for info in infos] + [[*meta.graph_attrs]]
    # What is printed of a stranger's folder, in errors too, shall not move the cursor.
    words = [meta.fingerprint, *map(type_name, (*meta.nodes, *meta.edges)), *meta.checksums]
    words += [word for names in (*groups, *map(dict.values, dropped.values())) for word in names]
    for word in words:
        yield word.isprintable(), 'names of printable letters', word
    for row in [row for info in infos for row in info.attrs.values()]:
        is_dtype = isinstance(getattr(torch, row['dtype'], None), torch.dtype)
        yield is_dtype, 'a dtype of torch', row['dtype']
    for key, nodes in meta.nodes.items():
        total = sum(nodes.part_num_nodes)
        yield total == nodes.num_nodes, f"all nodes of {key} in 'part_num_nodes'", total
    for relation, edges in meta.edges.items():
        is_known = {edges.src, edges.dst} <= meta.nodes.keys()
        yield is_known, f'relations between node types {list(meta.nodes)}', relation
        total = sum(edges.part_num_edges)
        yield total == edges.num_edges, f"all edges of {relation} in 'part_num_edges'", total
        counts = [sum(row) for row in edges.block_edges]
        yield counts == edges.part_num_edges, f"all edges of {relation} in 'block_edges'", counts
        own = [row[part] for part, row in enumerate(edges.halo_rows)]
        yield not any(own), f"no 'halo_rows' of {relation} from a part to itself", own
    for type_key in (*meta.nodes, *meta.edges):
        yield not {'/', '\0'} & {*type_name(type_key)}, 'types that can name files', type_key
    hidden = meta.graph_attrs.keys() & meta.nodes.keys()
    yield not hidden, "no type's name in 'graph_attrs'", hidden
    if not meta.is_hetero:  # all are those of one Data
        groups = [[name for group in groups for name in group]]
    for group in groups:
        yield len(set(group)) == len(group), 'every name of an attribute once', group
        for name in group:
            yield name not in _NOT_ATTRS and not name.startswith('_'), 'names of attributes', name
