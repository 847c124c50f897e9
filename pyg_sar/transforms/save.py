"""Node attributes written back into a partition folder, so that later runs load them.

A reader looks only for the attributes that META.json names, and every file is replaced by a rename:
first every rank writes its own parts' files, then rank 0 names the new attributes. So the folder
loads wherever a program was killed: without the new attributes, or with all of them.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from pyg_sar.checkpoint.all_or_none import together
from pyg_sar.comm import agree, check_equal, in_call
from pyg_sar.partitioner.graph.attributes import label_facts
from pyg_sar.rows.attach import as_local, check_not_local
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.shard.format.checksums import file_checksum
from pyg_sar.shard.format.file_names import META_FILE, NODE_ATTRS_FILE, part_dir
from pyg_sar.shard.format.meta import meta_text, read_meta, row_type
from pyg_sar.shard.format.tensor_file import load_tensors
from pyg_sar.shard.shard import Shard

_LOADED_BY_OTHER_NAMES = ('edge_index', 'n_id', 'e_id', 'num_nodes', 'x')


@in_call('save_node_attrs')
def save_node_attrs(data: Data, names: Sequence[str], *, overwrite: bool = False) -> None:
    """Writes node attributes of all ranks into the partition folder they were loaded from.

    Afterwards :func:`pyg_sar.load_shard` gives them as it gives ``y``, on any number of ranks. The
    folder must be one that all ranks see. If a rank fails or the program is killed, the folder
    stays readable: it then has none of the new attributes (nor, with `overwrite`, the old ones of
    those names).

    For embeddings that later programs read::

        data.z = out.detach()
        pyg_sar.transforms.save_node_attrs(data, ['z'])

    Collective: a few small all-gathers.

    Args:
        data: What load_shard gave, with the new attributes, one row per node each, in one row
            shape and dtype on all ranks.
        names: Which attributes to write.
        overwrite: Whether attributes that the folder has already may be replaced.

    Raises:
        ValueError: On all ranks, if an attribute is missing or does not fit, its name is taken, or
            the folder holds another partition by now.
        OSError: On all ranks, if a file is missing or cannot be written on one.
    """
    check_not_local('save_node_attrs', data)
    data, names = as_local(data), list(dict.fromkeys(names))
    together(lambda: _check_data(data, names))
    shard = data.edge_index.handle.shard
    row_types = {name: row_type(data[name]) for name in names}
    check_equal('node attributes', agree(row_types))

    known = together(lambda: _known_attrs(shard, names, overwrite))[0]
    kept = {name: row_type for name, row_type in known.items() if name not in names}
    # While parts hold old and new values of an attribute, the folder names neither it nor the
    # checksums of their files.
    num_parts = read_meta(shard.root).num_parts
    unknown = {_file_of(part): None for part in range(num_parts)}
    together(lambda: _write_meta(shard, kept, unknown, {}))
    values = {name: data[name] for name in names}
    facts = _joined_facts(agree(label_facts(values, ())), data)
    written = together(lambda: _write_parts(shard, values, set(kept)))
    checksums = dict(ChainMap(*written))
    together(lambda: _write_meta(shard, {**kept, **row_types}, checksums, facts))


def _check_data(data: Data, names: list[str]) -> None:
    if not isinstance(data, Data):
        raise ValueError(
            f'expected the Data of a homogeneous graph (got a {type(data).__name__}; attributes of '
            'typed nodes are written by the partitioner only)'
        )
    if not isinstance(data.edge_index, LocalEdges):
        raise ValueError(
            f'expected the data that pyg_sar.load_shard gave (got an edge_index of type '
            f'{type(data.edge_index).__name__})'
        )
    shard = data.edge_index.handle.shard
    for name in names:
        if name in _LOADED_BY_OTHER_NAMES:
            raise ValueError(f"expected the name of a new node attribute (got '{name}')")
        value = getattr(data, name, None)
        if not isinstance(value, Tensor) or value.dim() == 0 or value.size(0) != shard.num_own:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"expected one row per own node in '{name}': {shard.num_own} rows (got {got})"
            )


def _known_attrs(shard: Shard, names: list[str], overwrite: bool) -> dict[str, Any]:
    """The node attributes of the folder, if `names` may join them."""
    meta = read_meta(shard.root)
    if meta.fingerprint != shard.fingerprint:
        raise ValueError(
            f"expected the partition that the data was loaded from in '{shard.root}' "
            '(got another one by now)'
        )
    known = meta.nodes[None].attrs
    taken = {
        'node_attrs (replaced with overwrite=True)': {} if overwrite else known,
        'edge_attrs': meta.edges[None].attrs,
        'graph_attrs': meta.graph_attrs,
    }
    for name in names:
        for place, attrs in taken.items():
            if name in attrs:
                raise ValueError(
                    f"expected the name of a new node attribute (got '{name}', which is in {place} "
                    f"of '{shard.root}')"
                )
    return known


def _joined_facts(facts: Sequence[dict[str, Any]], data: Data) -> dict[str, Any]:
    """What the labels of all ranks tell, if labels are written; classes never become fewer."""
    joined: dict[str, Any] = {}
    ranges = [each['label_range'] for each in facts if each]
    if ranges:
        joined['label_range'] = [min(low for low, _ in ranges), max(high for _, high in ranges)]
    counts = [each['num_classes'] for each in facts if 'num_classes' in each]
    if counts:
        known = getattr(data, 'num_classes', None)
        joined['num_classes'] = max(*counts, known if isinstance(known, int) else 0)
    return {k: v for k, v in joined.items() if not isinstance(getattr(data, k, None), Tensor)}


def _write_parts(shard: Shard, values: dict[str, Tensor], keep: set[str]) -> dict[str, str]:
    """Adds values to the files of the own parts, beside those named in `keep`; gives checksums."""
    checksums = {}
    ptr = shard.own_ptr if shard.cut is None else shard.cut[0].ptr
    for part, (start, end) in enumerate(pairwise(ptr), shard.parts.start):
        path = Path(shard.root) / _file_of(part)
        rows: Any = slice(start, end)
        if shard.cut is not None:
            rows = shard.cut[0].nodes[rows]
        old: dict[str, Any] = load_tensors(path, dict, root=Path(shard.root))
        content = {name: value for name, value in old.items() if name in keep}
        for name, value in values.items():
            content[name] = value[rows].detach().cpu().clone()  # a view would save all its rows
        with _replacing(path) as new:
            torch.save(content, new)
        checksums[_file_of(part)] = file_checksum(path)
    return checksums


def _file_of(part: int) -> str:
    return (part_dir('', part) / NODE_ATTRS_FILE).as_posix()


def _write_meta(
    shard: Shard,
    node_attrs: dict[str, Any],
    checksums: Mapping[str, str | None],
    facts: dict[str, Any],
) -> None:
    """Rank 0 alone writes, once all ranks are ready."""
    if shard.rank == 0:
        meta = read_meta(shard.root)
        nodes = {key: replace(info, attrs=node_attrs) for key, info in meta.nodes.items()}
        known = {**meta.checksums, **checksums}
        sums = {name: value for name, value in known.items() if value is not None}
        with _replacing(Path(shard.root) / META_FILE) as new:
            attrs = {**meta.graph_attrs, **facts}
            text = meta_text(replace(meta, nodes=nodes, checksums=sums, graph_attrs=attrs))
            new.write_text(text, encoding='utf-8')


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Gives a place for a file that replaces `path`, link or not, if the block ends well."""
    with TemporaryDirectory(prefix='.tmp-', dir=path.parent) as folder:
        new = Path(folder) / path.name
        yield new
        with new.open('rb+') as file:
            os.fsync(file.fileno())
        new.replace(path)
