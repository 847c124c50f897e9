"""Messages that pair edges by their place: four at a time, in the order of the whole graph.

A mesh's edge has four neighbours in a fixed order, and the message reads every fourth row. On a cut
graph the four edges of a group are on one rank if they end in one node. If they start in one node
instead they read the same row, so every edge can stand in for its whole group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from pyg_sar.aggregate.halo import with_halo
from pyg_sar.comm import agree, raise_together
from pyg_sar.conv.call.propagation import Propagation
from pyg_sar.conv.message.arguments import Binding, bind
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.plan import Plan, plan_of

_GROUP = 4

_CommonEnd = Literal['destination', 'source']


class OrderedPropagation(Propagation):
    """``propagate`` of a conv whose message reads groups of four consecutive edges.

    With one exchange of all halo rows, in every mode.
    """

    def _propagate(self, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Tensor:
        oriented, size, kwargs = self._oriented('propagate', edge_index, size, kwargs)
        edges = oriented.edge_index
        exchange = self.exchanges.of(edges)
        shard = exchange.shard
        error: ValueError | None = None
        try:
            self._check(shard, size)
            if not isinstance(edges, ShardEdgeIndex) or not edges.is_whole or shard.e_id is None:
                raise ValueError(
                    f'expected the edge_index of the shard itself in {type(self.conv).__name__}, '
                    'whose message depends on the order of the edges (got edges derived from it)'
                )
            plan = plan_of(edges, shard)
            binding = bind(self.conv, 'message', kwargs, plan)
        except ValueError as found:
            error = found
        key = ('ordered', shard.fingerprint)
        if shard.world_size > 1 and key not in self.agreed:
            raise_together(error)
        elif error is not None:
            raise error
        if key not in self.agreed:
            self.agreed[key] = self._common_end(plan)
        src = tuple(with_halo(t, exchange) for t in binding.arguments.src)
        binding = replace(binding, arguments=replace(binding.arguments, src=src))
        out = self._aggregate(binding, plan, self.agreed[key])
        num_dst = shard.num_dst
        update_kwargs = self.conv.inspector.collect_param_data(
            'update', {'dim_size': num_dst, 'size_i': num_dst, **kwargs}
        )
        updated: Tensor = self.conv.update(out, **update_kwargs)
        return updated

    def _aggregate(self, binding: Binding, plan: Plan, common_end: _CommonEnd) -> Tensor:
        e_id = plan.shard.e_id
        assert e_id is not None
        order = torch.argsort(e_id)
        if common_end == 'destination':
            values = _inputs(binding, plan, order)
            return binding.aggregate(values, binding.run(values))
        groups = binding.run(_inputs(binding, plan, order.repeat_interleave(_GROUP)))
        places = torch.arange(order.numel(), device=order.device) * _GROUP
        messages = groups.index_select(0, places + e_id[order] % _GROUP)
        return binding.aggregate(_inputs(binding, plan, order), messages)

    def _common_end(self, plan: Plan) -> _CommonEnd:
        """Which end the four edges of every group have in common (collective, once).

        Raises:
            ValueError: On all ranks, if neither.
        """
        turned = self.exchanges.oriented(
            ShardEdgeIndex.wrap(plan.edge_index, plan.shard, is_whole=True), flip=True
        ).edge_index
        e_id = self.exchanges.of(turned).shard.e_id
        assert plan.shard.e_id is not None
        assert e_id is not None
        own = (
            _are_whole_groups(plan.shard.e_id, plan.edge_index[1]),
            _are_whole_groups(e_id, turned.as_subclass(Tensor)[1]),
        )
        at_destination, at_source = zip(*agree(own), strict=True)
        if all(at_destination):
            return 'destination'
        takes_statistics = any(isinstance(m, STATISTICS_MODULES) for m in self.conv.modules())
        if all(at_source) and not takes_statistics:  # it would count every group several times
            return 'source'
        raise ValueError(
            f'expected edges in groups of {_GROUP} that end in one node, or without norms inside '
            f'start in one, in {type(self.conv).__name__} (got others)'
        )


def _inputs(binding: Binding, plan: Plan, order: Tensor) -> dict[str, Any]:
    """The inputs of the edges in an order."""
    edge_index = plan.edge_index[:, order]
    edge = tuple(t.index_select(0, order) for t in binding.arguments.edge)
    arguments = replace(binding.arguments, edge=edge)
    return binding.inputs(arguments, edge_index, edge_index[1], plan.shard.num_dst)


def _are_whole_groups(e_id: Tensor, ends: Tensor) -> bool:
    """Whether these are whole groups, each with one end."""
    if e_id.numel() % _GROUP:
        return False
    ids, order = e_id.sort()
    ids, ends = ids.view(-1, _GROUP), ends[order].view(-1, _GROUP)
    first = ids[:, :1]
    places = torch.arange(_GROUP, device=ids.device)
    is_whole = (first % _GROUP == 0).all() & (ids == first + places).all()
    return bool(is_whole & (ends == ends[:, :1]).all())
