"""What a loader of nodes is given as seeds: own nodes, and their times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm import together
from pyg_sar.draws import hashed
from pyg_sar.rows.align import own_rows
from pyg_sar.rows.attach import as_local, gather, space_of_nodes
from pyg_sar.rows.rows import Rows
from pyg_sar.sampling.graph import LocalGraph
from pyg_sar.sampling.seeds.seeds import Asked, Seeds
from pyg_sar.shard.format.file_names import NodeKey


class _Own(NamedTuple):
    """Seeds of this rank among ids of the whole graph."""

    rows: Tensor  # own rows
    places: Tensor  # in what was given
    all_ids: str  # what was given, which must be equal on all ranks


def with_own_seeds(given: dict[str, Any]) -> dict[str, Any]:
    """Own seeds in place of ids or of a mask of the whole graph, for data of ``load_shard``.

    Collective where ids are rows.
    """
    nodes: Any = given.get('input_nodes')
    time, store = given.get('input_time'), given['data']
    is_typed = isinstance(nodes, (tuple, list)) and len(nodes) == 2
    if isinstance(store, HeteroData):
        if not is_typed or nodes[0] not in store.node_types:
            return given
        store, nodes = store[nodes[0]], nodes[1]
    space = space_of_nodes(store)
    if space is None:
        return given
    if nodes is None or (isinstance(nodes, Rows) and nodes.dtype == torch.bool):
        if type(time) is Tensor:
            seeds = space if nodes is None else space.selected(nodes)
            return {**given, 'input_time': own_rows('input_time', time, 0, seeds)}
        return given
    try:
        ids = gather(nodes) if isinstance(nodes, Rows) else torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'input_nodes' must be a mask or ids (got {nodes!r})") from error
    ids = ids.detach().cpu().contiguous()
    told = f'{ids.numel()} of the whole graph, hash {int(hashed(0, ids.long()).sum()) % 2**48:x}'
    count = int(store.num_nodes)
    own, order = as_local(store).n_id.cpu()[: space.own].sort()
    if ids.dtype == torch.bool and ids.shape == (count,):
        rows = order[ids[own]].sort().values
        chosen = _Own(rows, rows, told)
        if type(time) is Tensor:
            seeds = space.selected(ids[as_local(store).n_id.cpu()])
            given = {**given, 'input_time': own_rows('input_time', time, 0, seeds)}
    elif ids.dim() != 1 or ids.dtype == torch.bool or (ids.numel() and ids.is_floating_point()):
        raise ValueError(
            f"'input_nodes' must be a mask of the {count} nodes, or ids of them (got {ids.dtype} "
            f'{tuple(ids.shape)})'
        )
    else:
        ids = ids.long()
        wrong = ids[(ids < 0) | (ids >= count)]
        if wrong.numel():
            raise ValueError(
                f"'input_nodes' must be ids of the {count} nodes (got {int(wrong[0])})"
            )
        at = torch.searchsorted(own, ids).clamp(max=max(own.numel() - 1, 0))
        places = (own[at] == ids).nonzero().view(-1) if own.numel() else ids[:0]
        chosen = _Own(order[at[places]], places, told)
        if isinstance(time, Rows) and isinstance(nodes, Rows):
            time = gather(time)
        if isinstance(time, Tensor) and not isinstance(time, Rows) and len(time) == len(ids):
            given = {**given, 'input_time': time[places.to(time.device)]}
    key = given['input_nodes'][0] if isinstance(given['data'], HeteroData) else None
    return {**given, 'input_nodes': chosen if key is None else (key, chosen)}


def read_nodes(data: Data | HeteroData, given: Mapping[str, Any]) -> Asked:
    """What `input_nodes` and `input_time` say."""
    if given['input_time'] is not None and given['time_attr'] is None:
        raise ValueError("'input_time' needs a 'time_attr' (got None)")
    key, row, input_id = _rows_of(data, given['input_nodes'])

    def seeds(graph: LocalGraph, disjoint: bool) -> Seeds:
        nodes = graph.nodes[key]

        def times() -> Tensor | None:
            if not nodes.own_ptr:
                raise ValueError(f"'input_nodes' must be of a type with edges (got '{key}')")
            if given['input_time'] is not None:
                return graph.times_of('input_time', given['input_time'], row.numel())
            if given['time_attr'] is None:
                return None
            if key not in graph.times:  # but edges or other nodes are
                raise ValueError(
                    "'input_time' must be given where seeds have no 'time_attr' of their own (got "
                    'None)'
                )
            return graph.times[key][nodes.positions(row) - nodes.first]

        time = together(times)
        options = given['batch_size'], disjoint, given['seed'], given['shuffle']
        position = nodes.positions(row)
        n_id = nodes.n_id[position - nodes.first]
        return Seeds(graph, key, (position,), n_id, input_id, time, *options)

    nodes = given['input_nodes']
    own = nodes[1] if isinstance(nodes, tuple) and not isinstance(nodes, _Own) else nodes
    told = f'{key or "nodes"}, {own.all_ids}' if isinstance(own, _Own) else key
    return {'input_nodes': told, 'input_time': given['input_time'] is not None}, seeds


def _rows_of(data: Data | HeteroData, input_nodes: Any) -> tuple[NodeKey, Tensor, Tensor]:
    """The type, the own rows and the `input_id` of the seeds."""
    key: NodeKey = None
    if isinstance(data, HeteroData):
        if isinstance(input_nodes, (tuple, list)) and len(input_nodes) == 2:
            key, input_nodes = input_nodes
        else:
            key, input_nodes = input_nodes, None
        if key not in data.node_types:
            raise ValueError(
                f"'input_nodes' must be a type of nodes, or (type, nodes), of {data.node_types} "
                f'(got {key!r})'
            )
    if isinstance(input_nodes, _Own):
        return key, input_nodes.rows, input_nodes.places
    count = int((data if key is None else data[key]).num_nodes)
    if input_nodes is None:
        every = torch.arange(count)
        return key, every, every
    try:
        nodes = torch.as_tensor(input_nodes).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"'input_nodes' must be a mask or rows (got {input_nodes!r})") from error
    if nodes.dtype == torch.bool and nodes.shape == (count,):
        rows = nodes.nonzero().view(-1)
        return key, rows, rows
    if not nodes.numel() and nodes.dim() == 1 and not isinstance(input_nodes, Tensor):
        nodes = nodes.long()  # an empty list
    if nodes.dim() != 1 or nodes.dtype == torch.bool or nodes.is_floating_point():
        raise ValueError(
            f"'input_nodes' must be a mask of the {count} own nodes, or rows of them (got "
            f'{nodes.dtype} {tuple(nodes.shape)})'
        )
    rows = nodes.long()
    wrong = rows[(rows < 0) | (rows >= count)]
    if wrong.numel():
        raise ValueError(
            f"'input_nodes' must be rows of the {count} own nodes, not ids as n_id has them (got "
            f'{int(wrong[0])})'
        )
    return key, rows, torch.arange(rows.numel())
