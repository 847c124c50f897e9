"""Reads partitions that torch_geometric.distributed's own Partitioner wrote.

They hold the edges of every part and the part of every node, but neither halos nor boundaries. A
rank finds its halos in its own edges, and its boundaries in the sources of all other parts' edges,
one part after another: so it holds the node maps (16 bytes a node) and its own edges,
but reads all edges once. Partitioning anew, with ``python -m pyg_sar.partition FOLDER OUT``, saves
that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyg_sar.shard.format import file_names
from pyg_sar.shard.format.file_names import EdgeKey, NodeKey
from pyg_sar.shard.format.meta import EdgeInfo, Meta, NodeInfo
from pyg_sar.shard.format.meta_checks import check_attr_names, check_types
from pyg_sar.shard.format.meta_text import read_json
from pyg_sar.shard.read.foreign_files import check_ids, check_rows, clear_errors, load_foreign
from pyg_sar.shard.read.parts import Part, Tensors


def is_foreign(root: str | Path) -> bool:
    """Whether a folder was written by PyG's own Partitioner."""
    try:
        meta = read_json(root)
    except (OSError, ValueError):
        return False
    if not isinstance(meta, dict) or not {'num_parts', 'is_hetero'} <= {*meta}:
        return False
    # Ours with a damaged META.json would else load as PyG's, without labels and checksums.
    return 'pyg_sar' not in meta and not any(Path(root).glob(f'part_*/{file_names.SAR_FILE}'))


@dataclass(frozen=True)
class _Places:
    """Where the nodes of one type are.

    Shapes:
        - **owner** int64 [N]: part of every node
        - **place** int64 [N]: its position in the order of (part, id)
        - **partptr** int64 [P + 1]: first place of every part
    """

    owner: Tensor
    place: Tensor
    partptr: Tensor

    def position(self, nodes: Tensor) -> Tensor:
        """The position of nodes among those of their owner."""
        return self.place[nodes] - self.partptr[self.owner[nodes]]


class ForeignFolder:
    """A folder of PyG's own Partitioner.

    Args:
        root: The folder.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file does not hold what PyG writes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        with clear_errors(root):
            self._read_meta()

    def _read_meta(self) -> None:
        root, path = self.root, self.root / file_names.META_FILE
        content = read_json(root)
        self.num_parts = content['num_parts']
        self.is_hetero = bool(content['is_hetero'])
        if type(self.num_parts) is not int or self.num_parts < 1:
            raise ValueError(
                f"expected a positive int 'num_parts' in '{path}' (got {self.num_parts!r})"
            )
        last = file_names.part_dir(root, self.num_parts - 1)
        if not last.is_dir():  # the number may be any
            raise FileNotFoundError(f"expected the last part in '{last}' (got no such folder)")
        self.node_types: list[NodeKey] = content['node_types'] if self.is_hetero else [None]
        self.edge_types: list[EdgeKey] = [None]
        if self.is_hetero:
            self.edge_types = [(src, name, dst) for src, name, dst in content['edge_types']]
            check_types(
                path, [*content['node_types'], *(n for t in self.edge_types if t for n in t)]
            )
        self._graphs: dict[int, dict[EdgeKey, dict[str, Any]]] = {}
        self.places = {key: self._places(key) for key in self.node_types}
        self.num_edges = {
            key: int(load_foreign(file_names.edge_map_file(root, key), Tensor, root).numel())
            for key in self.edge_types
        }

    def _places(self, key: NodeKey) -> _Places:
        path = file_names.node_map_file(self.root, key)
        owner = load_foreign(path, Tensor, self.root).long()
        if owner.dim() != 1 or (
            owner.numel() and not 0 <= int(owner.min()) <= int(owner.max()) < self.num_parts
        ):
            raise ValueError(f"expected the part of every node in '{path}'")
        node_perm = torch.argsort(owner, stable=True)
        place = torch.empty_like(node_perm)
        place[node_perm] = torch.arange(place.numel())
        return _Places(owner, place, _ptr(torch.bincount(owner, minlength=self.num_parts)))

    def meta(self, parts: list[Part]) -> Meta:
        """What META.json would say, as far as the loader asks; attributes as in `parts`.

        Raises:
            ValueError: If the parts have different ones.
        """
        names = [
            [_row_types(attrs) for kind in (p.node_attrs, p.edge_attrs) for attrs in kind.values()]
            for p in parts
        ]
        for of_type in names[0]:
            check_attr_names(self.root, [name for name, *_ in of_type])
        if any(other != names[0] for other in names):
            raise ValueError(f"expected the same attributes in all parts of '{self.root}'")
        digest = hashlib.sha256(repr([*self.num_edges.items()]).encode())
        for places in self.places.values():
            digest.update(places.owner.numpy().data)
        nodes = {
            key: NodeInfo(
                places.owner.numel(),
                places.partptr.diff().tolist(),
                dict.fromkeys(parts[0].node_attrs[key]),
                {},
            )
            for key, places in self.places.items()
        }
        edges = {
            key: EdgeInfo(
                *_ends(key), count, [], [], [], dict.fromkeys(parts[0].edge_attrs[key]), {}
            )
            for key, count in self.num_edges.items()
        }
        return Meta(self.num_parts, self.is_hetero, digest.hexdigest(), nodes, edges, {})

    def read_part(self, part: int) -> Part:
        """What our own files of a part would hold."""
        with clear_errors(self.root):
            return self._read_part(part)

    def _read_part(self, part: int) -> Part:
        graph = self._graph(part)
        n_id = {
            key: (places.owner == part).nonzero().view(-1) for key, places in self.places.items()
        }
        index, first = {}, 0
        for key in self.edge_types:
            index[key] = self._index(part, key, graph[key], first)
            first += self.num_edges[key]
        folder = file_names.part_dir(self.root, part)
        node_attrs = self._node_attrs(folder / file_names.NODE_FEATS_FILE, n_id)
        edge_attrs = self._edge_attrs(folder / file_names.EDGE_FEATS_FILE, index, graph)
        return Part(n_id, index, node_attrs, edge_attrs)

    def _graph(self, part: int) -> dict[EdgeKey, dict[str, Any]]:
        """The edges of a part, mapped from its file."""
        if part not in self._graphs:
            self._graphs[part] = self._checked_graph(part)
        return self._graphs[part]

    def _checked_graph(self, part: int) -> dict[EdgeKey, dict[str, Any]]:
        path = file_names.part_dir(self.root, part) / file_names.GRAPH_FILE
        content = load_foreign(path, dict, self.root)
        graph = content if self.is_hetero else {None: content}
        first = 0
        for key in self.edge_types:
            edges = graph.get(key)
            names = ('row', 'col', 'edge_id')
            if not isinstance(edges, dict) or not all(
                isinstance(edges.get(name), Tensor) for name in names
            ):
                raise ValueError(f"expected the tensors {names} of {key} in '{path}'")
            src, dst = (self.places[end] for end in _ends(key))
            check_ids(path, 'row', edges['row'], 0, src.owner.numel())
            check_ids(path, 'col', edges['col'], 0, dst.owner.numel())
            check_ids(path, 'edge_id', edges['edge_id'], first, self.num_edges[key])
            first += self.num_edges[key]
            if len({edges[name].numel() for name in names}) > 1:
                raise ValueError(f"expected as many {names} in '{path}' (got others)")
            if bool((dst.owner[edges['col']] != part).any()):
                raise ValueError(
                    f"expected edges into nodes of part {part} in '{path}' (got others: it was "
                    'written by a version of PyG that deals edges out in another way)'
                )
        return graph

    def _index(self, part: int, key: EdgeKey, edges: dict[str, Any], first: int) -> Tensors:
        """Local ids, halo, boundary and blocks; the edges by (block, destination, source, id)."""
        src, dst = (self.places[end] for end in _ends(key))
        row, col = edges['row'], edges['col']
        order = torch.argsort(edges['edge_id'])
        for by in (src.place[row], dst.place[col], src.owner[row]):
            order = order[torch.argsort(by[order], stable=True)]
        e_id, row, col = (edges[name][order] for name in ('edge_id', 'row', 'col'))
        owner = src.owner[row]
        halo = torch.unique(src.place[row[owner != part]])
        halo_owner = torch.bucketize(halo, src.partptr[1:], right=True)
        num_own = int(src.partptr[part + 1] - src.partptr[part])
        halo_src = num_own + torch.searchsorted(halo, src.place[row])
        boundary = [self._read_by(reader, part, key) for reader in range(self.num_parts)]
        sizes = torch.tensor([rows.numel() for rows in boundary])
        return {
            'halo_ptr': _ptr(torch.bincount(halo_owner, minlength=self.num_parts)),
            'halo_pos': (halo - src.partptr[halo_owner]).int(),
            'boundary_ptr': _ptr(sizes),
            'boundary_pos': torch.cat(boundary).int(),
            'block_ptr': _ptr(torch.bincount(owner, minlength=self.num_parts)),
            'src': torch.where(owner == part, src.position(row), halo_src).int(),
            'dst': dst.position(col).int(),
            'e_id': e_id - first,  # PyG numbers the edges of all relations one after another.
        }

    def _read_by(self, reader: int, part: int, key: EdgeKey) -> Tensor:
        """The rows of `part` that another part reads."""
        places = self.places[_ends(key)[0]]
        if reader == part:
            return torch.empty(0, dtype=torch.int64)
        row: Tensor = self._graph(reader)[key]['row']
        read: Tensor = torch.unique(places.position(row[places.owner[row] == part]))
        return read

    def _node_attrs(self, path: Path, n_ids: dict[NodeKey, Tensor]) -> dict[NodeKey, Tensors]:
        content = load_foreign(path, dict, self.root)
        content = content if self.is_hetero else {None: content}
        attrs = {}
        for key, n_id in n_ids.items():
            stored = content.get(key, {'feats': {}})
            # Of a heterogeneous graph, 'global_id' numbers all types one after another.
            ids = stored.get('id', stored.get('global_id'))
            attrs[key] = {
                name: _rows(value, ids, n_id, path)
                for name, value in stored['feats'].items()
                if value is not None
            }
            if 'time' in stored:  # that of all nodes
                check_rows(path, 'time', stored['time'], self.places[key].owner.numel())
                attrs[key]['time'] = stored['time'][n_id]
        return attrs

    def _edge_attrs(
        self, path: Path, index: dict[EdgeKey, Tensors], graph: dict[EdgeKey, dict[str, Any]]
    ) -> dict[EdgeKey, Tensors]:
        content = load_foreign(path, dict, self.root)
        content = content if self.is_hetero else {None: content}
        attrs, first = {}, 0
        for key in self.edge_types:
            stored = content.get(key, {})
            ids = stored.get('global_id')
            if ids is None:
                ids = graph[key]['edge_id'] - first
            values = dict(stored.get('feats', {}))
            values.update({n: stored[n] for n in ('edge_time',) if n in stored})
            e_id = index[key]['e_id']
            attrs[key] = {name: _rows(value, ids, e_id, path) for name, value in values.items()}
            first += self.num_edges[key]
        return attrs


def _rows(values: Tensor, ids: Tensor, wanted: Tensor, path: Path) -> Tensor:
    """The rows of `wanted` ids, where `values` has those of `ids`."""
    check_rows(path, 'feats', values, ids.numel())
    order = torch.argsort(ids)
    place = torch.searchsorted(ids[order], wanted).clamp(max=max(ids.numel() - 1, 0))
    if not torch.equal(ids[order][place], wanted):
        raise ValueError(
            f"expected a row for each of {wanted.numel()} ids in '{path}' (got others)"
        )
    rows: Tensor = values.index_select(0, order[place])
    return rows


def _row_types(attrs: Tensors) -> list[tuple[str, torch.dtype, torch.Size]]:
    return [(name, value.dtype, value.shape[1:]) for name, value in attrs.items()]


def _ends(key: EdgeKey) -> tuple[NodeKey, NodeKey]:
    return (None, None) if key is None else (key[0], key[2])


def _ptr(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])
