"""Turns a partition folder of DGL into plain arrays that the partitioner reads, DGL's parts kept.

It runs in DGL's environment, which may be one without pyg_sar (DGL's last release needs torch 2.2
or older), and needs dgl and numpy alone, so this file may be copied there::

    python convert_dgl.py PARTITIONS/graph.json ARRAYS         # with dgl
    python -m pyg_sar.partition ARRAYS OUT                     # with pyg_sar

Every array of the graph becomes one .npy file, written part by part: memory holds one part at a
time. Ids are those DGL gave the nodes when it partitioned them, by type. ``feat`` and ``features``
become ``x``, ``label`` and ``labels`` ``y``, and ``feat`` of edges ``edge_attr``; other names stay.
Masks, which DGL stores as numbers, become booleans. Python 3.8 is enough.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
NODE_NAMES = {'feat': 'x', 'features': 'x', 'label': 'y', 'labels': 'y'}
EDGE_NAMES = {'feat': 'edge_attr', 'features': 'edge_attr'}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns its exit code."""
    parser = argparse.ArgumentParser(description='Turns a partition folder of DGL into arrays.')
    parser.add_argument('config', metavar='GRAPH.json', help='what partition_graph of DGL wrote')
    parser.add_argument('out', metavar='OUT', help='folder to write; must not exist or be empty')
    args = parser.parse_args(argv)
    try:
        convert(args.config, args.out)
    except (ValueError, OSError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


def convert(config: str, out: str) -> None:
    """Writes the arrays of a partition folder of DGL.

    Args:
        config: The .json file of ``dgl.distributed.partition_graph``.
        out: Folder to write; it may not exist yet, or be empty.

    Raises:
        ValueError: If `config` or `out` is not as described.
    """
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"expected a new or empty folder '{out}' (got one with files)")
    meta = json.loads(Path(config).read_text(encoding='utf-8'))
    missing = {'num_parts', 'node_map', 'edge_map'} - meta.keys()
    if missing:
        raise ValueError(f'expected the .json file of a DGL partition (got no {sorted(missing)})')
    if any(key.count(':') != 2 for key in meta['edge_map']):
        raise ValueError(
            "expected relations as 'source:name:destination' in the .json file, as DGL 1.0 and "
            f'later write them (got {list(meta["edge_map"])})'
        )
    folder.mkdir(parents=True, exist_ok=True)
    Writer(folder, meta).write(config)


class Ranges:
    """Ids of DGL number all types part by part; ours number each type by itself.

    Args:
        ranges: Of every type, first and last id of every part in DGL's numbering.
    """

    def __init__(self, ranges: dict[str, list[list[int]]]) -> None:
        self.first = {}
        self.sizes = {}
        starts = []
        for key, parts in ranges.items():
            sizes = [end - start for start, end in parts]
            self.first[key] = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            self.sizes[key] = sizes
            for (start, end), first in zip(parts, self.first[key].tolist()):  # noqa: B905
                if end > start:
                    starts.append((start, first))
        starts.sort()
        self._starts = np.array([start for start, _ in starts], np.int64)
        self._shifts = np.array([first - start for start, first in starts], np.int64)

    def own_id(self, ids: Array) -> Array:
        """Ids within their types."""
        if ids.size == 0:
            return ids
        return ids + self._shifts[np.searchsorted(self._starts, ids, side='right') - 1]

    def rows(self, key: str, part: int) -> slice:
        """The ids of a type that a part holds."""
        return slice(int(self.first[key][part]), int(self.first[key][part + 1]))

    def count(self, key: str) -> int:
        """How many there are of a type."""
        return int(self.first[key][-1])


class Writer:
    """Writes the arrays, one part after another.

    Args:
        folder: An empty folder.
        meta: What the .json file says.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.num_parts = meta['num_parts']
        self.nodes, self.edges = Ranges(meta['node_map']), Ranges(meta['edge_map'])
        self.is_hetero = len(meta['node_map']) > 1 or len(meta['edge_map']) > 1
        self.arrays: dict[str, Array] = {}

    def write(self, config: str) -> None:
        """Writes all arrays."""
        import dgl.distributed

        for key, sizes in self.nodes.sizes.items():
            part_id = np.repeat(np.arange(self.num_parts), sizes)
            np.save(self._path('part', key), part_id)
            np.save(self._path('num_nodes', key), np.int64(self.nodes.count(key)))
        np.save(self.folder / 'num_parts.npy', np.int64(self.num_parts))
        for part in range(self.num_parts):
            graph, node_feats, edge_feats, *_ = dgl.distributed.load_partition(config, part)
            self._write_edges(graph, part)
            for name, values in node_feats.items():
                key, _, short = name.rpartition('/')
                short = _renamed(short, NODE_NAMES, node_feats, key)
                self._put(short, key, self.nodes, part, values.numpy())
            for name, values in edge_feats.items():
                key, _, short = name.rpartition('/')
                short = _renamed(short, EDGE_NAMES, edge_feats, key)
                self._put(short, key, self.edges, part, values.numpy())
            if 'orig_id' in graph.ndata and not self.is_hetero:  # of DGL before 1.0
                key, inner = next(iter(self.nodes.sizes)), graph.ndata['inner_node'].bool()
                self._put('orig_id', key, self.nodes, part, graph.ndata['orig_id'][inner].numpy())
        for array in self.arrays.values():
            if isinstance(array, np.memmap):
                array.flush()

    def _write_edges(self, graph: Any, part: int) -> None:
        is_inner = graph.edata['inner_edge'].bool().numpy()
        n_id, e_id = graph.ndata['_ID'].numpy(), graph.edata['_ID'].numpy()[is_inner]
        ends = [self.nodes.own_id(n_id[ids.numpy()[is_inner]]) for ids in graph.edges()]
        own = self.edges.own_id(e_id)
        kind = graph.edata['_TYPE'].numpy()[is_inner] if '_TYPE' in graph.edata else None
        for i, key in enumerate(self.edges.sizes):
            of_key = slice(None) if kind is None else kind == i
            rows = self.edges.rows(key, part)
            if own[of_key].size != rows.stop - rows.start:
                raise ValueError(
                    f"expected {rows.stop - rows.start} edges of '{key}' in part {part} "
                    f'(got {own[of_key].size})'
                )
            name = 'edge' if self.is_hetero else 'edge_index'
            array = self._array(name, key, (2, self.edges.count(key)), np.dtype(np.int64))
            for end in (0, 1):
                array[end][own[of_key]] = ends[end][of_key]

    def _put(self, name: str, key: str, ranges: Ranges, part: int, values: Array) -> None:
        if name.endswith('_mask') and values.dtype == np.uint8:
            values = values.astype(bool)
        rows = ranges.rows(key, part)
        array = self._array(name, key, (ranges.count(key), *values.shape[1:]), values.dtype)
        array[rows] = values

    def _array(self, name: str, key: str, shape: tuple[int, ...], dtype: Any) -> Array:
        path = self._path(name, key)
        if path.name not in self.arrays:
            if 0 in shape:  # nothing to map
                np.save(path, np.empty(shape, dtype))
                self.arrays[path.name] = np.empty(shape, dtype)
            else:
                self.arrays[path.name] = np.lib.format.open_memmap(
                    path, mode='w+', dtype=dtype, shape=shape
                )
        return self.arrays[path.name]

    def _path(self, name: str, key: str) -> Path:
        types = key.replace(':', '|')
        return self.folder / (f'{name}|{types}.npy' if self.is_hetero else f'{name}.npy')


def _renamed(name: str, names: dict[str, str], feats: dict[str, Any], key: str) -> str:
    """PyG's name for an attribute, unless another one of the type has or gets it."""
    new = names.get(name, name)
    short = [n.rpartition('/')[2] for n in feats if n.rpartition('/')[0] == key]
    return new if [names.get(n, n) for n in short].count(new) == 1 else name


if __name__ == '__main__':
    sys.exit(main())
