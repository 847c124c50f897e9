"""Nodes as seeds: own ones, each in the batches of its part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from pyg_sar.comm import raise_together
from pyg_sar.draws import hashed_on
from pyg_sar.sampling.attributes import NodeKey
from pyg_sar.sampling.graph import Graph
from pyg_sar.sampling.seeds.inputs import EDGES, Asked, First, Inputs, Seeds, by_part, times_of


@dataclass(frozen=True, eq=False)
class NodeSeeds(Seeds):
    """Nodes, and their places in what the loader was given, int64 ``[S]``."""

    input_id: Tensor

    def tell(self, nodes: Mapping[NodeKey, Any], edges: Mapping[Any, Any], number: int) -> None:
        """See :meth:`Seeds.tell`."""
        ((key, first),) = self.first.items()
        cut, store = slice(*first.cuts[number : number + 2]), nodes[key]
        store.input_id = self.input_id[cut]
        store.batch_size = cut.stop - cut.start
        if self.until is not None:
            store.seed_time = self.until[cut]


@dataclass(frozen=True, eq=False)
class NodeInputs(Inputs):
    """All seeds of a rank; their keys are ids in the whole graph.

    Attributes:
        type: Of the nodes.
        row: Own rows, int64 ``[N]``.
        input_id: int64 ``[N]``.
        time: int64 or float64 ``[N]``, or None.
    """

    type: NodeKey
    row: Tensor
    input_id: Tensor
    time: Tensor | None

    def of_batches(self, order: Sequence[Tensor], epoch: int, batches: Sequence[int]) -> Seeds:
        """See :meth:`Inputs.of_batches`."""
        at, lengths = self.cut(order, batches)
        group, state = torch.repeat_interleave(lengths), self.states(EDGES, epoch, batches)
        ptr = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])[:: len(order)]
        group_ptr, until = torch.arange(len(batches) + 1) * len(order), None
        if self.disjoint:
            state = hashed_on(state[group], self.key[at])
            group, group_ptr = torch.arange(at.numel()), ptr
            if self.time is not None:
                until = self.time[at]
                state = hashed_on(state, until.view(torch.int64))
        first = First(group, self.graph.nodes[self.type].first + self.row[at], ptr.tolist())
        return NodeSeeds({self.type: first}, group_ptr, state, until, True, self.input_id[at])

    def visits(self) -> Iterable[tuple[NodeKey, Tensor, Tensor]]:
        """See :meth:`Inputs.visits`."""
        yield self.type, self.graph.nodes[self.type].first + self.row, self.shares()


def read_nodes(data: Data | HeteroData, given: Mapping[str, Any]) -> Asked:
    """What `input_nodes` and `input_time` say.

    Raises:
        ValueError: If they are not rows of own nodes, or their type is unknown.
    """
    if given['input_time'] is not None and given['time_attr'] is None:
        raise ValueError("'input_time' needs a 'time_attr' (got None)")
    key, row, input_id = _rows_of(data, given['input_nodes'])
    same = {'input_nodes': key, 'input_time': given['input_time'] is not None}

    def inputs(graph: Graph, disjoint: bool) -> NodeInputs:
        nodes, time, error = graph.nodes[key], None, None
        if given['input_time'] is not None:
            time, error = times_of(graph, 'input_time', given['input_time'], row.numel())
        elif given['time_attr'] is not None and key in graph.times:
            time = graph.times[key][row]
        elif given['time_attr'] is not None:  # by edges, or by other nodes
            error = (
                "'input_time' must be given where seeds have no 'time_attr' of their own (got None)"
            )
        if not nodes.own_ptr:
            error = f"'input_nodes' must be of a type with edges (got '{key}')"
        raise_together(None if error is None else ValueError(error))
        own, parts = nodes.n_id[row], by_part(graph, key, row)
        options = given['batch_size'], disjoint, given['seed'], given['shuffle']
        return NodeInputs(graph, own, parts, *options, key, row, input_id, time)

    return Asked('input_nodes', same, inputs)


def _rows_of(data: Data | HeteroData, input_nodes: Any) -> tuple[NodeKey, Tensor, Tensor]:
    """The type, the own rows and the `input_id` of the seeds.

    Raises:
        ValueError: If they are not rows of own nodes, or their type is unknown.
    """
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
