"""partition_graph: from a PyG Data or HeteroData to a partition folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.partition import given
from pyg_sar.partition.external_sort import neighbours
from pyg_sar.partition.graph import TypedGraph, typed_graph
from pyg_sar.partition.ldg import ldg_parts
from pyg_sar.partition.masks import MASKS, parse_split, random_split
from pyg_sar.partition.memmap import BoolArray, Int64Array, Scratch, aligned
from pyg_sar.partition.metis import find_sub_parts, kaminpar_parts, metis_parts
from pyg_sar.partition.options import (
    CutOptions,
    MethodLike,
    Problem,
    check_options,
    check_positive,
    check_seed,
    metis_package,
    node_weights,
)
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.summary import PartitionSummary
from pyg_sar.partition.writer import (
    existing_parent,
    replace_folder,
    target_folder,
    write_partition,
)
from pyg_sar.shard.format import NodeKey
from pyg_sar.utils.command_line import Progress


@contextmanager
def _one_thread() -> Iterator[None]:
    """Runs torch on one thread: the passes are many short operations, which several slow down."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def partition_graph(
    data: Data | HeteroData | str | os.PathLike[str],
    num_parts: int,
    root: str | os.PathLike[str],
    *,
    method: MethodLike = 'metis',
    seed: int = 0,
    objective: str = 'cut',
    balance: str = 'nodes',
    split: str | tuple[float, float, float] | None = None,
    force: bool = False,
    progress: bool = False,
) -> PartitionSummary:
    """Cuts a graph into parts and writes one shard per part.

    Every edge is stored once, with the part of its destination; duplicate edges and self loops
    are kept. Every attribute with one row per node or per edge goes with its node or edge;
    scalars, strings and short lists of the graph go to META.json, from which a tuple comes back as
    a list and a tensor of one number as that number; anything else is dropped with a warning that
    names it. The folder appears complete or not at all, and `data` is not changed. A partitioner
    sees the types of a heterogeneous graph as one graph, whose nodes weigh the same.

    Not collective: one process cuts the graph, once::

        summary = pyg_sar.partition_graph(graph, 4, 'new_parts/', balance='edges')
        print(summary)

    Args:
        data: The graph: ``edge_index`` integer [2, E], and any attributes; or a HeteroData with at
            least one relation; or a file or the name of a graph, as the command line takes it,
            which stays on disk (see :mod:`pyg_sar.partition.sources`). Sparse ``x``,
            ``y`` and other attributes of well-known names are stored dense.
        num_parts: Number of parts P, 1 <= P <= N.
        root: Folder to write; it may not exist yet, or be empty.
        method: ``'metis'`` (few cut edges); ``'ldg'`` (streaming, for graphs beyond METIS's
            memory); ``'kaminpar'`` (an optional package); ``'random'``; ``'range'`` (equal runs of
            ids); ``'file:PATH'`` (.npy, .pt or .txt with one part id per node); or an integer
            tensor [N] of part ids; of a HeteroData the types one after another, or a dict with a
            tensor for every type. Parts given by the caller may be empty.
        seed: Seed of the method and of the split; the same seed gives the same parts.
        objective: ``'cut'`` (edges between parts) or ``'volume'`` (rows exchanged per layer; by
            METIS alone).
        balance: What every part shall have an equal share of, within 5 %: ``'nodes'``, or
            ``'edges'`` (every node and its in-edges); of a HeteroData those of all types together.
        split: Fractions such as ``'0.6/0.2/0.2'``: writes random ``train_mask``, ``val_mask`` and
            ``test_mask`` over the labelled nodes (integer y >= 0; float y not NaN; all without y),
            of a HeteroData in every type that has ``y``.
        force: Whether to replace an earlier partition in `root`, once the new one is complete.
        progress: Whether to say on stderr what runs.

    Returns:
        The sizes of the parts, the edge cut and the rows exchanged per layer.

    Raises:
        ValueError: If the graph or an option is not as described; nothing is written.
    """
    options = CutOptions(method, check_seed(seed), objective, balance)
    return cut_graph(data, num_parts, root, options, split=split, force=force, progress=progress)


def cut_graph(
    data: Data | HeteroData | str | os.PathLike[str] | Callable[[Scratch], Data | HeteroData],
    num_parts: int,
    root: str | os.PathLike[str],
    options: CutOptions,
    *,
    split: str | tuple[float, float, float] | None = None,
    force: bool = False,
    progress: bool = False,
    in_cache_order: bool | None = None,
    command: Sequence[str] | None = None,
) -> PartitionSummary:
    """What :func:`partition_graph` does.

    `data` may be a function that gives the graph, called once the options are known to be right.
    `in_cache_order` says whether neighbours are near each other in a part, instead of in the order
    of ids; by default where pymetis cuts. `command` is for META.json.
    """
    num_parts = check_positive('num_parts', num_parts)
    target, before = target_folder(root, force=force)
    check_options(options)
    fractions = None if split is None else parse_split(split)
    scratch = Scratch(existing_parent(target))  # files without a name
    if isinstance(data, FunctionType):  # Data can be called as well
        data = data(scratch)
    with _one_thread():
        if isinstance(data, (str, os.PathLike)):
            data = load_source(data, scratch=scratch)
        graph = typed_graph(data, scratch)
        if num_parts > graph.num_nodes:
            raise ValueError(
                "'num_parts' must not exceed the number of nodes (got "
                f'{num_parts} and {graph.num_nodes})'
            )
        if fractions is not None:
            _add_split(graph, fractions, options.seed)
        if in_cache_order is None:
            in_cache_order = options.name == 'metis' and metis_package() == 'pymetis'
        with Progress(quiet=not progress) as shown:
            if options.name == 'metis':
                shown.phase('METIS')
            else:
                shown.phase('assigning nodes', delay=0.5)  # a mistake is told alone
            assignment = sub_parts = assign_nodes(graph, num_parts, options)
            if in_cache_order:
                shown.phase('order of nodes')
                sub_parts = find_sub_parts(graph, assignment, num_parts, options.seed)
            with replace_folder(target, before) as folder:
                return write_partition(
                    folder,
                    graph,
                    assignment,
                    num_parts,
                    sub_parts=sub_parts,
                    provenance=options.provenance(),
                    command=None if command is None else list(command),
                    on_part=shown.steps('part', num_parts),
                )


def _add_split(graph: TypedGraph, fractions: tuple[float, float, float], seed: int) -> None:
    labelled = [
        nodes for nodes in graph.nodes.values() if 'y' in nodes.attrs or not graph.is_hetero
    ]
    if not labelled:
        raise ValueError(
            f"'split' needs a node type with labels 'y' (got none in {list(graph.nodes)})"
        )
    for nodes in labelled:
        present = [name for name in MASKS if name in nodes.attrs]
        if present:
            raise ValueError(f"'split' needs a graph without masks (got {', '.join(present)})")
        y = aligned(nodes.attrs['y']) if 'y' in nodes.attrs else None
        nodes.attrs.update(random_split(y, nodes.num_nodes, fractions, seed=seed))


def assign_nodes(graph: TypedGraph, num_parts: int, options: CutOptions) -> dict[NodeKey, Tensor]:
    """The part of every node, int32 [N], by type; a type without edges is dealt out evenly."""
    if options.reads_edges and num_parts == 1:
        parts = torch.zeros(graph.num_nodes, dtype=torch.int64)
    elif options.reads_edges:
        parts = _cut(graph, num_parts, options)
    elif options.name == 'random':
        parts = given.random_parts(graph, num_parts, options.seed)
    elif options.name == 'range':
        parts = given.range_parts(graph, num_parts)
    else:
        parts = given.given_parts(graph, num_parts, options.method)
    return graph.by_type(parts.to(torch.int32))


def _cut(graph: TypedGraph, num_parts: int, options: CutOptions) -> Tensor:
    """Parts by a method that reads edges, of the types one after another, int64 [N]."""
    connected = _connected(graph)
    weights = node_weights(graph, options.balance, connected, num_parts)
    is_streaming = options.name == 'ldg'
    # METIS takes 64 bits, and what keeps duplicates has more to read.
    dtype = np.int32 if is_streaming and graph.num_nodes < 2**31 else np.int64
    near = neighbours(
        graph.homogeneous_edge_index(),
        graph.num_nodes,
        graph.scratch,
        keep_duplicates=is_streaming,
    )
    indptr, index = near.csr(dtype=dtype)
    del near
    problem = Problem(indptr, index, weights, num_parts, options, graph.scratch.folder)
    if not index.size:  # nothing to cut
        parts = _deal(graph, weights, num_parts)
    elif is_streaming:
        parts = ldg_parts(problem)
    else:
        parts = kaminpar_parts(problem) if options.name == 'kaminpar' else metis_parts(problem)
    for key, start in graph.offsets.items():
        nodes = slice(start, start + graph.nodes[key].num_nodes)
        if graph.is_hetero and not connected[nodes].any():
            parts[nodes] = given.equal_runs(graph.nodes[key].num_nodes, num_parts)
    return given.fill_empty_parts(parts, num_parts)


def _connected(graph: TypedGraph) -> BoolArray:
    """The nodes of types with edges, bool [N]; all nodes if no type has any."""
    used = {end for r in graph.relations.values() if r.edge_index.numel() for end in (r.src, r.dst)}
    sizes = [nodes.num_nodes for nodes in graph.nodes.values()]
    return np.repeat([key in used or not used for key in graph.nodes], sizes)


def _deal(graph: TypedGraph, weights: Int64Array | None, num_parts: int) -> Tensor:
    """Contiguous runs of the nodes of a type, of about equal weight."""
    weights = np.ones(graph.num_nodes, dtype=np.int64) if weights is None else weights
    dealt = []
    for weight in map(Tensor.numpy, graph.by_type(torch.from_numpy(weights)).values()):
        middle = np.cumsum(weight) - weight / 2
        parts = (middle * num_parts / max(int(weight.sum()), 1)).astype(np.int64)
        dealt.append(torch.from_numpy(parts.clip(max=num_parts - 1)))
    return torch.cat(dealt)
