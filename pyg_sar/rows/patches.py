"""Functions, classes and transforms of PyG and torch that do not look for ``__torch_function__``.

The first load of a graph replaces them. Without rows among its arguments each calls the original.
Sparse matrices are made of all entries, and scattered where it is known which rows they
run between.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex as edges_of_pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import BaseData
from torch_geometric.loader import ClusterData, GraphSAINTSampler, ShaDowKHopSampler
from torch_geometric.nn import GroupAddRev
from torch_geometric.sampler import HGTSampler, NeighborSampler
from torch_geometric.transforms import BaseTransform
from torch_geometric.typing import WITH_TORCH_SPARSE
from torch_geometric.utils import _negative_sampling, to_dense_batch

from pyg_sar.comm.ranks import world_size
from pyg_sar.comm.vote import agree
from pyg_sar.rows.adjacency import dealt_between, shardings_in
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.over_ranks import whole
from pyg_sar.rows.patched_memory import refuse_where_memory_is_taken, tell_torchscript
from pyg_sar.rows.rows import Rows, inside
from pyg_sar.rows.saved_tensors import keep_rows_apart
from pyg_sar.rows.users_functions import ask_in_functions
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.utils.nested import in_nested, leaves
from pyg_sar.utils.scoped import Scoped

_OURS = (
    'pyg_sar.NeighborLoader or pyg_sar.LinkNeighborLoader, with the loss '
    'pyg_sar.loader.mean_of_batches(losses), and model(data.x, data.edge_index) to evaluate'
)
_SAMPLERS: dict[type, str] = {
    NeighborSampler: _OURS,
    HGTSampler: _OURS,
    ShaDowKHopSampler: "pyg_sar.NeighborLoader with subgraph_type='induced', disjoint=True",
    GraphSAINTSampler: 'pyg_sar.NeighborLoader, or full batch',
    ClusterData: 'full batch: the parts of pyg_sar.partition are the clusters',
}
"""Classes of PyG that sample from the graph of one process, and what to use instead."""

_SPARSE = (
    *('sparse_coo_tensor', 'sparse_csr_tensor', 'sparse_csc_tensor', 'sparse_bsr_tensor'),
    *('sparse_bsc_tensor', 'sparse_compressed_tensor'),
)

alike_draws = Scoped(False)
"""Whether all ranks draw the negative edges of rank 0, even if the edges are plain tensors."""


@cache
def ask_for_rows() -> None:
    """Puts functions that ask a tensor for its class in place of the others, once in a process."""
    refuse_where_memory_is_taken()
    ask_in_functions()
    keep_rows_apart()
    for name in _SPARSE:
        function = getattr(torch, name)
        asking = _of_all_rows(function)
        tell_torchscript(asking, function)
        setattr(torch, name, asking)
    to_vector = _negative_sampling.edge_index_to_vector
    _negative_sampling.edge_index_to_vector = _of_all_rows(to_vector, draws=True)
    for name in ('forward', 'inverse'):
        owner = next(cls for cls in GroupAddRev.__mro__ if name in vars(cls))
        setattr(owner, name, _reversible(getattr(owner, name)))
    inner = inspect.getclosurevars(to_dense_batch).nonlocals.get('func')
    for cell in to_dense_batch.__closure__ or ():
        if inner is not None and cell.cell_contents is inner:
            cell.cell_contents = _dense_of_one_graph(inner)
    edges_of_pyg.__new__ = _edges_as_they_are(edges_of_pyg.__new__)
    for cls, instead in _SAMPLERS.items():
        cls.__init__ = _of_whole_graphs(cls, instead)  # type: ignore[misc]
    refuse_on_parts()
    if WITH_TORCH_SPARSE:
        from pyg_sar.rows import sparse_tensor

        sparse_tensor.ask()


def _of_all_rows(function: Callable[..., Any], *, draws: bool = False) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        has_rows = any(isinstance(arg, Rows) for arg in leaves((args, kwargs)))
        if draws and (has_rows or alike_draws.value) and world_size() > 1:
            # PyG draws pairs by Python's generator, which programs seldom seed: take rank 0's.
            random.setstate(agree(random.getstate())[0])
        if has_rows:
            shardings = shardings_in(leaves((args, kwargs)))
            args, kwargs = in_nested((args, kwargs), whole)
            return dealt_between(function(*args, **kwargs), shardings)
        return function(*args, **kwargs)

    return call


def _edges_as_they_are(make: Callable[..., Any]) -> Callable[..., Any]:
    """PyG's EdgeIndex of the edges of a cut graph: these edges, which convs take as well."""

    @wraps(make)
    def call(cls: type, data: Any, *args: Any, **kwargs: Any) -> Any:
        return data if isinstance(data, EdgeIndex) else make(cls, data, *args, **kwargs)

    return call


def _reversible(run: Callable[..., Any]) -> Callable[..., Any]:
    """Reversible layers, which free the memory of tensors: rows are kept for backward."""

    @wraps(run)
    def call(layer: Any, *args: Any) -> Any:
        if not any(isinstance(arg, Rows) for arg in args):
            return run(layer, *args)
        before, layer.disable = layer.disable, True
        try:
            return run(layer, *args)
        finally:
            layer.disable = before

    return call


def _dense_of_one_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """``to_dense_batch`` of rows that are one graph: they are in order, and nothing is filled.

    Of no nodes PyG's raises an error, where the batches of other ranks go through a model.
    Without it (a PyG whose function is not made by its decorator) every rank has all rows.
    """

    @wraps(function)
    def call(
        x: Any,
        batch: Any = None,
        fill_value: float = 0.0,
        max_num_nodes: int | None = None,
        batch_size: int | None = None,
    ) -> Any:
        is_one = isinstance(x, Rows) and max_num_nodes is None and batch_size in (None, 1)
        if is_one and (batch is None or (isinstance(batch, Rows) and int(batch.max()) == 0)):
            return x.unsqueeze(0), x.new_ones(x.size(0), dtype=torch.bool).unsqueeze(0)
        if isinstance(batch, Tensor) and not isinstance(batch, Rows) and not batch.numel():
            batch, batch_size = None, None  # a rank's batch without seeds: one graph of no nodes
        return function(x, batch, fill_value, max_num_nodes, batch_size)

    return call


def _of_whole_graphs(cls: type, instead: str) -> Callable[..., None]:
    """Refuses graphs that are cut."""
    make: Callable[..., None] = vars(cls)['__init__']

    @wraps(make)
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        for data in leaves((args, kwargs)):
            stores = data.edge_stores if isinstance(data, (Data, HeteroData)) else ()
            if any(isinstance(s.get('edge_index'), (Rows, LocalEdges)) for s in stores):
                raise ValueError(
                    f"PyG's {type(self).__name__} samples from the graph of one process (got that "
                    f'of load_shard): use {instead}'
                )
        make(self, *args, **kwargs)

    return call


_BY_ROW = {
    *('Compose', 'ComposeFilters', 'Constant', 'ToDevice'),
    *('AddRemainingSelfLoops', 'AddSelfLoops', 'LinearTransformation', 'RemoveSelfLoops'),
    *('RemoveTrainingClasses', 'ToSparseTensor'),
}
"""Transforms of PyG that change a part as they change the whole graph."""

_INSTEAD = {
    'RandomLinkSplit': 'apply it to the data of pyg_sar.load_shard, before pyg_sar.local',
}


def refuse_on_parts() -> None:
    """Has every other transform of PyG refuse a part of a graph, from now on in this process.

    They would take statistics, draw, or look for neighbours in one part, without an error. On rows
    of all ranks they run; where a function inside of one is refused, the error names the transform.
    """
    call = BaseTransform.__call__

    @wraps(call)
    def __call__(self: BaseTransform, data: Any) -> Any:
        name = type(self).__name__
        is_of_pyg = type(self).__module__.startswith('torch_geometric.') and name not in _BY_ROW
        if not is_of_pyg or not isinstance(data, BaseData):
            return call(self, data)
        values = [value for store in data.edge_stores for value in store.values()]
        instead = 'apply it to the whole graph before it is cut (python -m pyg_sar.partition '
        instead = _INSTEAD.get(name, f"{instead}--transform '{name}')")
        if any(isinstance(value, LocalEdges) for value in values):
            raise ValueError(f'T.{name} means nothing on a cut graph: {instead}')
        if not any(isinstance(value, EdgeIndex) for value in values):
            return call(self, data)
        with inside.set(f'T.{name} means nothing on a cut graph: {instead}'):
            return call(self, data)

    BaseTransform.__call__ = __call__
