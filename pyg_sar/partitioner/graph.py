"""partition_graph: from a PyG Data to a partition folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch_geometric.data import Data
from tqdm import tqdm

from pyg_sar.partitioner.assignment import assign_nodes, check_method
from pyg_sar.partitioner.attributes import count_nodes, sort_attributes
from pyg_sar.partitioner.checks import (
    check_ids,
    check_no_nan,
    check_num_parts,
    check_seed,
    checked_edge_index,
)
from pyg_sar.partitioner.folder import replace_folder, target_folder
from pyg_sar.partitioner.split import MASKS, parse_split, random_split
from pyg_sar.partitioner.summary import PartitionSummary
from pyg_sar.partitioner.writer import write_partition


def partition_graph(
    data: Data,
    num_parts: int,
    root: str | os.PathLike[str],
    *,
    method: str | Tensor = 'metis',
    backend: str = 'auto',
    seed: int = 0,
    balance: str = 'nodes',
    split: str | tuple[float, float, float] | None = None,
    check_nan: bool = False,
    force: bool = False,
    progress: bool = False,
    command: Sequence[str] | None = None,
) -> PartitionSummary:
    """Cuts a graph into parts and writes one shard per part.

    Every edge is stored once, with the part of its destination; duplicate edges and self loops
    are kept. Every attribute with one row per node or per edge goes with its node or edge;
    scalars, strings and short lists of the graph go to META.json; anything else is dropped with a
    warning that names it. The folder appears complete or not at all, and `data` is not changed.

    Args:
        data: The graph: ``edge_index`` integer [2, E], and any attributes. A sparse ``x`` is
            stored dense, one part at a time.
        num_parts: Number of parts P, 1 <= P <= N.
        root: Folder to write; it may not exist yet, or be empty.
        method: ``'metis'`` (few cut edges), ``'random'``, ``'file:PATH'`` (.npy, .pt or .txt with
            one part id per node) or an integer tensor [N] of part ids. Parts given by the caller
            may be empty.
        backend: METIS's binding: ``'pymetis'``, ``'pyg-lib'``, ``'torch-sparse'``, or ``'auto'``
            (pymetis).
        seed: Seed of METIS or of the random order, and of the split. Of the three bindings only
            pymetis takes one.
        balance: What METIS balances: ``'nodes'``, ``'edges'`` (in-edges plus one) or ``'train'``
            (training nodes).
        split: Fractions such as ``'0.6/0.2/0.2'``: writes random ``train_mask``, ``val_mask`` and
            ``test_mask`` over the labelled nodes (integer y >= 0; float y not NaN; all without y).
        check_nan: Whether to refuse NaN in ``x``.
        force: Whether to replace an earlier partition in `root`, once the new one is complete.
        progress: Whether to show progress bars on stderr.
        command: The command line, noted in META.json.

    Returns:
        The sizes of the parts, the edge cut and the rows exchanged per layer.

    Raises:
        ValueError: If the graph or an option is not as described; nothing is written.
    """
    num_parts, seed = check_num_parts(num_parts), check_seed(seed)
    target = target_folder(root, force=force)
    edge_index = checked_edge_index(data)
    num_nodes = count_nodes(data)
    if num_parts > num_nodes:
        raise ValueError(
            f"'num_parts' must not exceed the number of nodes (got {num_parts} and {num_nodes})"
        )
    check_ids(edge_index, num_nodes)
    attributes = sort_attributes(data, num_nodes, edge_index.size(1))
    if check_nan:
        check_no_nan(attributes.node.get('x'))
    if split is not None:
        present = [name for name in MASKS if name in attributes.node]
        if present:
            raise ValueError(f"'split' needs a graph without masks (got {', '.join(present)})")
        y = attributes.node.get('y')
        attributes.node.update(random_split(y, num_nodes, parse_split(split), seed=seed))
    train_mask = attributes.node.get('train_mask')
    check_method(method, backend, balance, has_train_mask=train_mask is not None)

    with _bar(progress, 'partitioning', 1) as bar:
        assignment = assign_nodes(
            method,
            edge_index,
            num_nodes,
            num_parts,
            backend=backend,
            seed=seed,
            balance=balance,
            train_mask=train_mask,
        )
        bar.update()
    name = 'tensor' if isinstance(method, Tensor) else method
    binding = 'pymetis' if backend == 'auto' else backend
    provenance = {
        'method': name,
        'backend': binding if name == 'metis' else None,
        'seed': seed,
        'balance': balance,
    }
    with _bar(progress, 'writing parts', num_parts) as bar, replace_folder(target) as folder:
        return write_partition(
            folder,
            assignment,
            edge_index,
            attributes,
            num_parts,
            provenance=provenance,
            command=None if command is None else list(command),
            on_part=bar.update,
        )


def _bar(progress: bool, description: str, total: int) -> Any:
    return tqdm(desc=description, total=total, disable=not progress)
