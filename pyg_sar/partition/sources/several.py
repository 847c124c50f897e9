"""Several graphs of a file as one, side by side, as PyG's Batch makes it."""

from __future__ import annotations

from typing import Any

from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.data.separate import separate

from pyg_sar.partition.graph import with_wide_ids
from pyg_sar.partition.sources.pickled_numpy import has_store
from pyg_sar.shard.files import is_of_system


def one_graph(content: Any) -> Any:
    """A graph of what a file holds, if it holds several or one with slices; else the content.

    A list of graphs, and ``(data, slices)`` of an InMemoryDataset, become one Batch, of which
    ``batch`` [N] tells the graph of every node. A ValueError tells why they cannot.
    """
    if isinstance(content, tuple) and len(content) in (2, 3) and not _is_graph(content[1]):
        # PyG's InMemoryDataset saves (data, slices[, class]); slices is None for one graph.
        content, slices = content[:2]
        if slices is None:
            return _whole(content)
        try:
            content = _taken_apart(_of_class(content), slices)
        except Exception as error:  # of slices that do not fit: anything
            if is_of_system(error):
                raise
            got = ' '.join(f'{type(error).__name__}: {error}'.split())
            raise ValueError(
                f'a dataset of several graphs whose slices do not fit: {got}'
            ) from error
    if not isinstance(content, (list, tuple)) or not content or not all(map(_is_graph, content)):
        return _whole(content)
    graphs = [_whole(graph) for graph in content]
    if len(graphs) == 1:
        return graphs[0]
    if isinstance(content, tuple) and len({*map(_counts, graphs)}) == 1:
        raise ValueError(
            f'a tuple of {len(graphs)} graphs of as many nodes, as RandomLinkSplit gives: save the '
            'one to train on; a list of different graphs is read as all of them side by side'
        )
    try:
        return Batch.from_data_list([*map(with_wide_ids, graphs)])
    except Exception as error:  # of graphs with other attributes, or other shapes: anything
        if is_of_system(error):
            raise
        got = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f'several graphs that make no batch of PyG: {got}') from error


def _is_graph(value: Any) -> bool:
    return isinstance(value, (Data, HeteroData))


def _counts(graph: Data | HeteroData) -> tuple[Any, ...]:
    """How many nodes there are of each type."""
    return tuple((store._key, store.num_nodes) for store in graph.node_stores)


def _whole(content: Any) -> Any:
    """A graph that PyG 1 has saved, as PyG 2 has it; anything else as it is."""
    if not isinstance(content, Data) or has_store(content):
        return content
    attrs = {k: v for k, v in content.__dict__.items() if v is not None and k != '__num_nodes__'}
    count = content.__dict__.get('__num_nodes__')
    name = '_num_nodes' if isinstance(count, list) else 'num_nodes'  # of each of several, or of one
    return Data.from_dict(attrs if count is None else {**attrs, name: count})


def _of_class(content: Any) -> Any:
    """A graph from its attributes, if they are all that there is."""
    if not isinstance(content, dict):
        return _whole(content)
    is_hetero = any(isinstance(key, tuple) for key in content)
    return HeteroData.from_dict(content) if is_hetero else Data.from_dict(content)


def _taken_apart(data: Data | HeteroData, slices: Any) -> list[Any]:
    """The graphs that were put in a row; `slices` by attribute, or by type and attribute."""
    lengths = set()
    for store in data.stores:
        of_store = slices if store._key is None else slices[store._key]
        names = set(store) - {'num_nodes'}
        if missing := names - set(of_store):
            raise ValueError(f'no slices of {sorted(missing)}')
        lengths |= {len(of_store[name]) for name in names}
    if len(lengths) != 1:
        raise ValueError(f'slices of {sorted(lengths)} graphs')
    cls: Any = type(data)
    count = lengths.pop() - 1
    graphs = (separate(cls, data, at, slices, decrement=False) for at in range(count))
    return [*graphs]
