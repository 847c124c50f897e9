"""Arguments of a loader of nodes: its seeds on this rank, and their times."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.loader.arguments import Options
from pyg_sar.loader.attributes import node_stores
from pyg_sar.loader.graph import LocalGraph
from pyg_sar.loader.seeds.own import check_ids, nodes_of, of_all_ranks, own_of, own_times
from pyg_sar.loader.seeds.seeds import Asked, Seeds
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.from_data import gather
from pyg_sar.rows.rows import Rows
from pyg_sar.rows.sharding import Space
from pyg_sar.shard.format import NodeKey

_CPU = torch.device('cpu')


def read_nodes(
    data: Data | HeteroData, options: Options, input_nodes: Any, input_time: Any
) -> Asked:
    """Reads the seeds and their times (collective where they are rows)."""
    has_time = input_time is not None
    if has_time and options.time_attr is None:
        raise ValueError("'input_time' needs a 'time_attr' (got None)")
    key, nodes = _type_of(data, input_nodes)
    row, space, same = _own_seeds(node_stores(data)[key], nodes)
    own_time = own_times('input_time', input_time, space) if has_time else None

    def seeds(graph: LocalGraph) -> Seeds:
        nodes, time = graph.nodes[key], None
        if not nodes.own_ptr:
            raise ValueError(f"'input_nodes' must be of a type with edges (got '{key}')")
        position = nodes.positions(row)
        if own_time is not None:
            time = graph.as_times(own_time)
        elif key in graph.times:
            time = graph.times[key][position - nodes.first]
        elif options.time_attr is not None:  # by edges, or by other nodes
            raise ValueError(
                "'input_time' must be given where seeds have no 'time_attr' of their own (got None)"
            )
        index, size = space.ids(_CPU), options.batch_size
        return Seeds(graph, key, (position,), index, space.total, time, size, options.has_trees)

    return {'input_nodes': (key, same), 'input_time': has_time}, seeds


def _type_of(data: Data | HeteroData, value: Any) -> tuple[NodeKey, Any]:
    """The type of the seeds, and their mask or ids; None for all."""
    if not isinstance(data, HeteroData):
        return None, value
    key, nodes = value, None
    if isinstance(value, (tuple, list)) and len(value) == 2:
        key, nodes = value
    if key not in data.node_types:
        raise ValueError(
            f"'input_nodes' must be a type of nodes, or (type, nodes), of {data.node_types} "
            f'(got {key!r})'
        )
    return key, nodes


def _own_seeds(store: Any, value: Any) -> tuple[Tensor, Space, str]:
    """Own rows of the seeds, their space, and words that must be equal on all ranks."""
    n_id, space = nodes_of(store)
    count = space.total
    if value is None:
        return torch.arange(space.own), space, 'all'
    try:
        nodes = value if isinstance(value, Rows) else torch.as_tensor(value).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'input_nodes' must be a mask or ids (got {value!r})") from error
    if nodes.dtype == torch.bool and nodes.shape == (count,):
        mask = space.selected(own_rows('input_nodes', nodes, 0, space))
        return mask.chosen(_CPU), mask, f'a mask of {mask.total}'
    ids = gather(nodes).detach().cpu()
    if ids.dim() != 1 or ids.dtype == torch.bool or (ids.numel() and ids.is_floating_point()):
        raise ValueError(
            f"'input_nodes' must be a mask of the {count} nodes, or ids of them (got {ids.dtype} "
            f'{tuple(ids.shape)})'
        )
    ids = ids.long()
    check_ids('input_nodes', ids, count)
    row, index = own_of(ids, n_id)
    listed = Space(index.numel(), what='seeds', ids=index, total=ids.numel())
    return row, listed, of_all_ranks(ids)
