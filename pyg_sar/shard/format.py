"""The on-disk format: names of the files of a partition folder, and what they hold.

The layout is that of ``torch_geometric.distributed.Partitioner``, so PyG's own stores read it;
what SAR needs beyond it lies in files of our own (``sar.pt``, ``whole.pt``) beside PyG's, and under
the key ``"pyg_sar"`` of META.json.

A homogeneous graph is a heterogeneous one with one type of nodes and one relation, both named None
here. In its files their content stands alone; in those of a heterogeneous graph it stands in a dict
by type, and META.json lists the types under ``"nodes"`` and ``"edges"``.
"""

from __future__ import annotations

from pathlib import Path

FORMAT_VERSION = 3

META_FILE = 'META.json'
WHOLE_FILE = 'whole.pt'
"""Tensors that every rank has whole, by type and name; there only if the graph has some."""

GRAPH_FILE = 'graph.pt'
NODE_FEATS_FILE = 'node_feats.pt'
EDGE_FEATS_FILE = 'edge_feats.pt'
SAR_FILE = 'sar.pt'

PART_FILES = GRAPH_FILE, NODE_FEATS_FILE, EDGE_FEATS_FILE, SAR_FILE
"""The files of every part folder, in the order they are written."""

TIMES = 'time', 'edge_time'
"""Attributes that PyG's samplers by time take from ``feats``. They need edges sorted by time, which
``graph.pt`` is not: these attributes lie under ``times`` beside it, where PyG does not look."""

NodeKey = str | None
"""The name of a type of nodes; None in a homogeneous graph."""

EdgeKey = tuple[str, str, str] | None
"""Source type, name and destination type of a relation; None in a homogeneous graph."""


def part_dir(root: str | Path, part: int) -> Path:
    """The folder of part `part`, named as PyG's partitioner names it."""
    return Path(root) / f'part_{part}'


def type_name(key: NodeKey | EdgeKey) -> str:
    """A type's name in file names, as PyG's partitioner writes it."""
    return '__'.join(key) if isinstance(key, tuple) else str(key)


def node_map_file(root: str | Path, key: NodeKey) -> Path:
    """The file with the part of every node, for PyG."""
    return Path(root) / ('node_map.pt' if key is None else f'node_map/{key}.pt')


def edge_map_file(root: str | Path, key: EdgeKey) -> Path:
    """The file with the part of every edge, for PyG."""
    return Path(root) / ('edge_map.pt' if key is None else f'edge_map/{type_name(key)}.pt')


def node_names_file(root: str | Path, key: NodeKey) -> Path:
    """The Arrow file with the names that nodes had; there only if they had names."""
    return Path(root) / ('node_names.arrow' if key is None else f'node_names/{key}.arrow')


NODE_NAMES = 'node_names'
"""The attribute of nodes with their names."""

VALUE = 'edge_value_of_adj_t'
"""Where the edges are entries of ``data.adj_t``, the attribute of edges with its values, if any."""

LAYOUT = 'layout_of_adj_t'
"""The attribute of the graph with what the matrix was, ``'coo'``, ``'csr'`` or ``'csc'`` of torch
or ``'SparseTensor'``, followed by ``' and edge_index'`` if the graph had both."""
