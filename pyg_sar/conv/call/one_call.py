"""One call of message passing, with its arguments as a rank computes with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import EdgeMove, Exchange
from pyg_sar.conv.inspect.trace import Seen
from pyg_sar.conv.message.arguments import Binding, bind
from pyg_sar.conv.options import Options
from pyg_sar.ground.class_swap import name_of
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import tag
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.shard.plan import Plan, plan_of


@dataclass(eq=False, kw_only=True)
class Call:
    """One call of ``propagate``, up to the conv's ``update``, or of ``edge_updater``."""

    conv: MessagePassing
    function: str  # ``'message'`` or ``'edge_update'``
    edge_index: ShardEdges  # as messages pass along it, into own nodes
    size: tuple[int | None, ...] | None
    kwargs: dict[str, Any]  # own rows, and rows in the order of `edge_index`
    edge_names: frozenset[str]  # which of them have a row for every edge
    num_nodes: tuple[int, int]  # sources and destinations, as a program sees them
    at_nodes: dict[str, Any]  # rows of nodes of the whole graph that it reads as they are
    move: EdgeMove | None  # how tensors of edges came over, if the edges were turned round
    edges: EdgeIndex | None  # as they were given, if the call was made with rows of the whole
    exchange: Exchange
    options: Options
    in_forward: bool  # whether the conv's own forward takes the result
    binding: Binding = field(init=False)  # the function with its arguments
    plan: Plan = field(init=False)

    def bind(self, names: tuple[str, ...]) -> Binding:
        """Checks and sorts the arguments; see :func:`pyg_sar.conv.message.arguments.bind`."""
        shard, size = self.exchange.shard, self.size
        if size is not None:
            own = shard.num_own, shard.num_dst
            if any(n not in (None, m) for n, m in zip(size, own, strict=True)):
                raise ValueError(
                    f"expected 'size' of {name_of(self.conv)} to be {own}, the nodes of this rank "
                    f'(got {tuple(size)}): give the number of all nodes, such as '
                    'num_edges=data.num_nodes, as edges do not tell of nodes without any'
                )
        self.plan = plan_of(self.edge_index)
        self.binding = bind(
            *(self.conv, self.function, names, self.kwargs),
            *(self.plan, self.edge_names, self.num_nodes),
        )
        if self.at_nodes:
            self.binding = replace(self.binding, at_nodes=self.at_nodes)
        return self.binding

    def in_given_order(self, values: Tensor) -> Tensor:
        """One row per edge, in the order of the caller's edges."""
        return values if self.move is None else self.move.to_forward(values)

    def set_attributes(self, seen: Seen, values: Sequence[Tensor]) -> None:
        """Sets on the conv what its function sets: one row per edge, and numbers."""
        for name, number in seen.numbers.items():
            setattr(self.conv, name, number)
        for name, value in zip(seen.edge_attributes, values, strict=True):
            rows = self.in_given_order(value)
            rows = rows if self.edges is None else tag(rows, 0, self.edges._space)
            setattr(self.conv, name, rows)
