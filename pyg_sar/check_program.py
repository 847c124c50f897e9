"""``check``: a training step on a small graph, whole and in two parts, in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.checking.compare import difference
from pyg_sar.checking.run import CannotRun
from pyg_sar.checking.small_graph import cut_in_parts
from pyg_sar.checking.view import Rows, View
from pyg_sar.own_rows import OwnRows, plain
from pyg_sar.wrap import wrap

_NUM_NODES = 61


def check(
    step: Callable[[torch.nn.Module, Any], Any],
    model: torch.nn.Module,
    data: Data | HeteroData,
) -> None:
    """Checks that a training step gives on ranks what it gives on one process.

    The step runs on a small part of the graph, once whole and once cut in two, with dropout off;
    what it returns and the gradients of it are compared. So the loss, metrics, class weights and
    whatever is prepared from `data` are checked as well as the model. No ranks are needed: call it
    in a test or a notebook while porting a script. Not collective::

        def step(model, data):
            out = model(data.x, data.edge_index)
            losses = F.cross_entropy(out, data.y, reduction='none')
            return pyg_sar.global_mean(losses, data.train_mask)

        pyg_sar.check(step, model, graph)

    Args:
        step: Is called with a copy of the model and the data of a rank, as
            :func:`pyg_sar.load_shard` gives it, and returns a loss, or tensors in containers.
        model: The plain model, or one that is wrapped already.
        data: The plain graph. Of each type of nodes about 60 are taken, with all edges between
            them; ``n_id`` is added.

    Raises:
        ValueError: If something differs, with the function or module where it does first and what
            to use instead; or if the step cannot be run on a small graph.
    """
    wrapped = wrap(copy.deepcopy(model), check=False)
    try:
        found = difference(wrapped, step, _CutData(*_small(data)))
    except CannotRun as reason:
        raise ValueError(f'the step cannot be checked: {reason}') from reason
    if found is not None:
        raise ValueError(found)


def _small(data: Data | HeteroData) -> tuple[Data | HeteroData, dict[str | None, Tensor]]:
    """Some nodes that are reached from one another, and a few others; and which they are."""
    generator = torch.Generator().manual_seed(0)
    if isinstance(data, HeteroData):
        chosen: dict[str | None, Tensor] = {
            name: _some(data[name].num_nodes, _NUM_NODES + 2 * i, generator)
            for i, name in enumerate(data.node_types)
        }
        return copy.copy(data).subgraph(chosen), chosen
    num_nodes = data.num_nodes
    assert num_nodes is not None
    chosen_nodes = _some(num_nodes, _NUM_NODES // 3, generator)
    while chosen_nodes.numel() < min(num_nodes, _NUM_NODES):
        src, dst = data.edge_index
        near = src[torch.isin(dst, chosen_nodes)]
        more = torch.unique(torch.cat([chosen_nodes, near]))
        if more.numel() == chosen_nodes.numel():
            more = torch.unique(torch.cat([more, _some(num_nodes, _NUM_NODES, generator)]))
        chosen_nodes = more
    chosen_nodes = chosen_nodes[:_NUM_NODES]
    return copy.copy(data).subgraph(chosen_nodes), {None: chosen_nodes}


def _some(num_nodes: int | None, count: int, generator: torch.Generator) -> Tensor:
    return torch.randperm(num_nodes or 0, generator=generator)[:count].sort().values


class _CutData:
    """A small graph, and the shards of its two parts."""

    def __init__(self, whole: Data | HeteroData, chosen: dict[str | None, Tensor]) -> None:
        self._chosen = chosen
        parts: Any = {}
        for store in whole.node_stores:
            num_nodes = int(store.num_nodes or 0)
            store.n_id = torch.arange(num_nodes)
            parts[store._key] = (torch.arange(num_nodes) * 7 % 5 > 1).long()
        method = parts if isinstance(whole, HeteroData) else parts[None]
        bare = copy.copy(whole)
        for store in bare.node_stores:
            del store.n_id
        self._data = [whole, *cut_in_parts(bare, method)]
        self.views = [self._view(data, whole) for data in self._data]

    def _view(self, data: Data | HeteroData, whole: Data | HeteroData) -> View:
        rows: dict[Any, Rows] = {}
        for store, of_whole in zip(data.node_stores, whole.node_stores, strict=True):
            rows['nodes', store._key] = Rows(int(of_whole.num_nodes or 0), store.n_id)
        for store, of_whole in zip(data.edge_stores, whole.edge_stores, strict=True):
            num_edges = of_whole.edge_index.size(1)
            ids = store.e_id if 'e_id' in store else torch.arange(num_edges)
            rows['edges', store._key] = Rows(num_edges, ids)
        return View(rows, {})

    def cut(self, view: View, dtype: torch.dtype | None) -> Data | HeteroData:
        """The data of a run."""
        data = self._data[self.views.index(view)]
        return data.clone().apply(
            lambda t: t.to(dtype) if dtype is not None and t.dtype == torch.float32 else t
        )

    def learned(self, rows: OwnRows, view: View) -> OwnRows:
        """The rows of a node embedding as a run has them."""
        ids = view.rows['nodes', rows.node_type].ids
        return rows.of_some(plain(rows)[self._chosen[rows.node_type][ids]].clone(), ids)
