"""A plain model on all nodes, part by part, in one process of bounded memory."""

from __future__ import annotations

import copy
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.checkpoint import save_rows
from pyg_sar.commands.users_model import run_model
from pyg_sar.ddp.wrap import wrap
from pyg_sar.in_turns import Figures
from pyg_sar.in_turns.run import play
from pyg_sar.in_turns.tiers import OverMemory
from pyg_sar.load import load_shard
from pyg_sar.monitor import parse_bytes
from pyg_sar.predict.cut import Cuts
from pyg_sar.predict.passes import shown
from pyg_sar.shard.format.file_names import META_FILE
from pyg_sar.shard.format.meta import read_meta

Forward = Callable[[torch.nn.Module, Any], Any]
_MOST_TIMES = 32  # as many parts as were tried first: then more do not help
_SUFFIXES = ('.npy',)


def predict(
    model: torch.nn.Module,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    memory: str | int,
    spill: str | os.PathLike[str] | None = None,
    num_parts: int | None = None,
    forward: Forward | None = None,
    nodes: str | None = None,
    progress: bool = False,
) -> Figures:
    """Writes what a plain PyG model gives for all nodes, in the order of the graph.

    The graph is cut, and the parts go through the model in turn, in evaluation and without
    gradients. The result is that of the model on the whole graph, up to rounding. The cut stays
    beside `source`, for the next time. Not collective: one process calls it.

    Args:
        model: With its weights. It is not changed.
        source: A graph as ``python -m pyg_sar.partition`` takes it from a file, or a folder which
            that has written.
        out: ``NAME.npy``, as :func:`pyg_sar.save_rows` writes it. If the model
            gives a dict by node type, a file for every type, ``NAME-paper.npy``.
        memory: Bytes, or a text such as ``'4GB'``, which large tensors never exceed together.
            Python and its libraries are beside it, and small tensors. Where METIS needs more, the
            graph is cut with ``method='fennel'``.
        spill: As in :func:`pyg_sar.run_in_turns`; by default the folder of `source`.
        num_parts: Of the cut. By default they are found: if a part needs more than the memory, the
            graph is cut into twice as many, and all begins again.
        forward: Called as ``forward(model, data)`` on each part; by default
            ``model(data.x, data.edge_index)``, of a HeteroData
            ``model(data.x_dict, data.edge_index_dict)``.
        nodes: The type of the nodes, where the model of a HeteroData gives one tensor.
        progress: Whether to show the progress of the cut, and of the layers of each part.

    Returns:
        What was moved between memory and disk.

    Raises:
        ValueError: If an argument is wrong, the model does not give a row for every node, or a part
            needs more than the memory: one of `num_parts`, of a folder, or of many times as many.
        OSError: If a file cannot be read or written.
    """
    out, source = Path(out), Path(source)
    num_bytes = parse_bytes(memory) if isinstance(memory, str) else memory
    if num_bytes < 1:
        raise ValueError(f"'memory' must be positive (got {memory})")
    if num_parts is not None and num_parts < 1:
        raise ValueError(f"'num_parts' must be positive (got {num_parts})")
    if out.suffix not in _SUFFIXES:
        raise ValueError(f"expected a path that ends in .npy (got '{out}')")
    if not out.parent.is_dir():
        raise FileNotFoundError(f'no such folder: {out.parent}')
    if not os.access(out.parent, os.W_OK) or (out.suffix == '.npy' and out.is_dir()):
        raise PermissionError(f'cannot write {out}')
    run = forward or run_model
    shared = {id(parameter): parameter for parameter in model.parameters()}

    def on_parts(root: Path) -> Figures:
        def on_rank() -> None:
            data = load_shard(root)
            own = wrap(copy.deepcopy(model, dict(shared))).eval()
            with torch.no_grad():
                _save(out, run(own, data), data, nodes)

        # A quarter is for what a turn makes before others' tensors go.
        ranks, budget = read_meta(root).num_parts, num_bytes * 3 // 4
        folder = Path(spill or source.parent)
        with shown(model, ranks, quiet=not progress):
            return play(on_rank, ranks, memory=budget, spill=folder, limit=num_bytes).figures

    if (source / META_FILE).is_file():
        return on_parts(source)
    cuts = Cuts(source, num_bytes, progress=progress)
    if num_parts is not None:
        return on_parts(cuts.of(num_parts)[0])
    num_parts = cuts.first(model.parameters())
    most = min(_MOST_TIMES * num_parts, cuts.num_nodes)
    while True:
        root, is_new = cuts.of(num_parts)
        try:
            return on_parts(root)
        except OverMemory:
            if is_new:  # it would be in the way next time
                shutil.rmtree(root)
            if num_parts >= most:
                raise
        gc.collect()  # the ranks that have ended
        num_parts = min(2 * num_parts, most)


def _save(out: Path, found: Any, data: Data | HeteroData, nodes: str | None) -> None:
    is_hetero = isinstance(data, HeteroData)
    if nodes is not None and not (is_hetero and nodes in data.node_types):
        types = data.node_types if is_hetero else []
        raise ValueError(f"'nodes' must be a type of nodes of the graph, {types} (got '{nodes}')")
    if isinstance(found, dict):
        for key in sorted(found) if nodes is None else [nodes]:
            if key not in found or not is_hetero or key not in data.node_types:
                raise ValueError(f"expected rows of '{key}' nodes (got {sorted(found)})")
            path = out.with_name(f'{out.stem}-{key}{out.suffix}') if nodes is None else out
            save_rows(path, found[key], data[key])
        return
    if not isinstance(found, Tensor):
        raise ValueError(f'expected a tensor of the model, or a dict of them (got {type(found)})')
    if is_hetero and nodes is None:
        raise ValueError(
            f"expected 'nodes', the type of the nodes that the model's tensor has rows of: "
            f'{data.node_types} (got none)'
        )
    save_rows(out, found, data if nodes is None else data[nodes])
