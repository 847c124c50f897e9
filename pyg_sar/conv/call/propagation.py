"""One call of ``propagate`` or ``edge_updater`` on a cut graph: checks it and picks its path."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm import Exchange
from pyg_sar.comm.faults.errors import place
from pyg_sar.conv.call.agreement import Agreement, Call, agree_on_call, edge_tensors, signature
from pyg_sar.conv.call.by_destination import observe
from pyg_sar.conv.call.paths import Mode, Path, Paths, program_of
from pyg_sar.conv.exchanges import Exchanges, Oriented
from pyg_sar.conv.inspect.independence import (
    check_destinations_are_independent,
    check_edges_are_independent,
)
from pyg_sar.conv.inspect.one_shot_memory import one_shot_bytes
from pyg_sar.conv.inspect.softmax_is_linear import has_gradient_of_use
from pyg_sar.conv.inspect.trace import trace
from pyg_sar.conv.message.arguments import Binding, bind
from pyg_sar.conv.message.intercept import MessageError, StatisticsError, UnsupportedMessageError
from pyg_sar.conv.message.sample_edges import not_saved
from pyg_sar.conv.support import STATISTICS_MODULES
from pyg_sar.monitor import say
from pyg_sar.shard.plan import Plan, plan_of
from pyg_sar.shard.shard import Shard

_logger = logging.getLogger(__name__)


class Propagation:
    """Stands in for ``propagate`` and ``edge_updater`` of one conv for one forward.

    Args:
        conv: The conv.
        exchanges: The exchanges of the forward.
        mode: The mode of the SARConv.
        max_rows: In-edges of a chunk of the gather path; None for what fits into free memory.
        agreed: What the ranks have agreed on in earlier forwards; added to.
        memory_budget: What a call may hold on a rank in mode one_shot, in bytes; of mode auto.
    """

    def __init__(
        self,
        conv: MessagePassing,
        exchanges: Exchanges,
        mode: Mode,
        max_rows: int | None,
        agreed: dict[Any, Any],
        memory_budget: int | None = None,
    ) -> None:
        self.conv = conv
        self.exchanges = exchanges
        self.mode = mode
        self.max_rows = max_rows
        self.agreed = agreed
        self.memory_budget = memory_budget
        # PyG's own methods read a pair by the flow of the conv; those that it generates for a class
        # always read the first at '_j' and the second at '_i'.
        self.is_generated = {
            method: getattr(conv, method).__module__.endswith(f'_{method}')
            for method in ('propagate', 'edge_updater')
        }

    def propagate(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.propagate`` over all in-edges of the own nodes, remote ones included."""
        conv = self.conv
        for hook in conv._propagate_forward_pre_hooks.values():
            result = hook(conv, (edge_index, size, kwargs))
            if result is not None:
                edge_index, size, kwargs = result
        num_layers = conv.decomposed_layers
        if num_layers == 1:
            out = self._propagate(edge_index, size, kwargs)
        else:
            names = {name[:-2] for name in conv._user_args if name.endswith('_j')}
            parts = {name: kwargs[name].chunk(num_layers, -1) for name in names}
            layers = [
                self._propagate(edge_index, size, {**kwargs, **{n: parts[n][i] for n in names}})
                for i in range(num_layers)
            ]
            out = torch.cat(layers, dim=-1)
        for hook in conv._propagate_forward_hooks.values():
            result = hook(conv, (edge_index, size, kwargs), out)
            out = out if result is None else result
        return out

    def _propagate(self, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Tensor:
        oriented, size, kwargs = self._oriented('propagate', edge_index, size, kwargs)
        exchange, plan, binding, agreed = self._bind('message', oriented.edge_index, size, kwargs)
        paths = self._paths(exchange, oriented, agreed)
        out = paths.aggregate(agreed.path, plan, binding)
        num_dst = plan.shard.num_dst
        update_kwargs = self.conv.inspector.collect_param_data(
            'update', {'dim_size': num_dst, 'size_i': num_dst, **kwargs}
        )
        updated: Tensor = self.conv.update(out, **update_kwargs)
        return updated

    def edge_updater(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.edge_updater``: one row per edge of `edge_index`, in its order."""
        conv = self.conv
        for hook in conv._edge_update_forward_pre_hooks.values():
            result = hook(conv, (edge_index, size, kwargs))
            if result is not None:
                edge_index, size, kwargs = result
        oriented, own_size, own_kwargs = self._oriented('edge_updater', edge_index, size, kwargs)
        exchange, plan, binding, agreed = self._bind(
            'edge_update', oriented.edge_index, own_size, own_kwargs
        )
        paths = self._paths(exchange, oriented, agreed)
        out = paths.edge_update(agreed.path, plan, binding)
        for hook in conv._edge_update_forward_hooks.values():
            result = hook(conv, (edge_index, size, kwargs), out)
            out = out if result is None else result
        return out

    def _paths(self, exchange: Exchange, oriented: Oriented, agreed: Agreement) -> Paths:
        options = self.max_rows, oriented, agreed.one_pass
        return Paths(self.conv, exchange, agreed.mode, *options)

    def _oriented(
        self, method: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> tuple[Oriented, Any, dict[str, Any]]:
        """A call as one whose messages pass from row 0 to row 1 of an edge_index, into own nodes.

        Collective where edges have to be turned round for it.
        """
        against = self.conv.flow != 'source_to_target'
        oriented = self.exchanges.oriented(edge_index, flip=against)
        if against and size is not None:
            size = tuple(size)[::-1]
        if against and not self.is_generated[method]:
            kwargs = {
                name: value[::-1] if isinstance(value, (tuple, list)) and len(value) == 2 else value
                for name, value in kwargs.items()
            }
        if oriented.edges is not None:
            num_edges = edge_index.size(1)
            names = sorted(
                name
                for name, value in kwargs.items()
                if isinstance(value, Tensor) and value.dim() and name in self._read_per_edge
            )
            key = ('turned', *names)
            if key not in self.agreed:
                self.agreed[key] = edge_tensors({n: kwargs[n].size(0) for n in names}, num_edges)
            moved = {name: oriented.to_oriented(kwargs[name]) for name in self.agreed[key]}
            kwargs = {**kwargs, **moved}
        return oriented, size, kwargs

    @property
    def _read_per_edge(self) -> set[str]:
        """Arguments that message, aggregation or edge_update read as they are."""
        functions = ('message', 'aggregate', 'edge_update')
        names = {n for f in functions for n in self.conv.inspector.get_param_names(f)}
        return {name for name in names if name[-2:] not in ('_i', '_j')}

    def _bind(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> tuple[Exchange, Plan, Binding, Agreement]:
        """Binds the arguments of a call; see :meth:`_agree` for its first time."""
        exchange = self.exchanges.of_messages(edge_index)
        shard = exchange.shard
        takes_statistics = [
            getattr(m, 'training', True)
            for m in self.conv.modules()
            if isinstance(m, STATISTICS_MODULES)
        ]
        key = (function, shard.fingerprint, *signature(kwargs), any(takes_statistics))
        if key not in self.agreed:
            with not_saved():
                self.agreed[key] = self._agree(function, shard, edge_index, size, kwargs)
            found: Agreement = self.agreed[key]
            text = f'{place()}: {found.function}, path {found.path}, mode {found.mode!r}'
            say(_logger, logging.INFO, text)
        self._check(shard, size)
        plan = plan_of(edge_index, shard)
        agreed: Agreement = self.agreed[key]
        binding = bind(self.conv, function, kwargs, plan, agreed.edge_names)
        return exchange, plan, binding, agreed

    def _agree(
        self, function: str, shard: Shard, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> Agreement:
        """Checks a call once, with all ranks (collective), and picks its path."""
        call = Call()
        path: Path = 'one_shot'
        error: Exception | None = None
        try:
            self._check(shard, size)
            plan = plan_of(edge_index, shard)
            binding = bind(self.conv, function, kwargs, plan)
            path, needed = self._path(binding, plan)
            one_pass = path == 'replay' and _one_pass(binding)
            takes_gradient = torch.is_grad_enabled() and any(
                t.requires_grad for t in binding.arguments.edge
            )
            told = f'{path}, with gradient' if path == 'weighted' and takes_gradient else path
            call = Call.of(
                binding.arguments,
                binding.rows,
                plan.num_edges,
                (shard.num_own, shard.num_dst),
                binding.sums_of_whole(),
                told,
                one_pass,
                needed,
            )
        except MessageError as unsupported:
            error = ValueError(
                f"{type(self.conv).__name__}'s '{function}' cannot be computed on a cut graph: "
                f'{unsupported}'
            )
        except Exception as failure:
            error = failure
        name = f'{type(self.conv).__name__}.{function}'
        edge_names, one_pass, needed = agree_on_call(name, call, error, shard.world_size)
        mode = self.mode
        if mode == 'auto':
            assert self.memory_budget is not None
            mode = 'one_shot' if needed <= self.memory_budget else 'sequential'
            if path == 'replay' and mode == 'one_shot':
                path = 'one_shot'
        return Agreement(name, edge_names, path, one_pass, mode, needed)

    def _path(self, binding: Binding, plan: Plan) -> tuple[Path, int]:
        """How a call is computed: in the cheapest way that is exact for what it does.

        Returns:
            The path, and in mode auto what mode one_shot would hold, in bytes.

        Raises:
            ValueError: If there is none.
        """
        path: Path
        try:
            traced = trace(binding, STATISTICS_MODULES)
            num_reductions = 0 if traced.aggregate is None else len(traced.aggregate.calls)
            check_edges_are_independent(binding, num_reductions)
        except StatisticsError:
            # The statistics are of all edges: all messages have to be there at once.
            return 'one_shot', 0
        except UnsupportedMessageError:
            observe(binding)
            path = 'gather'
        except MessageError:
            if self.mode != 'one_shot':
                raise
            path = 'one_shot'
        else:
            path = 'one_shot' if self.mode == 'one_shot' else 'replay'
            if traced.is_linear:
                path = 'linear'
            elif traced.is_weighted:
                path = 'weighted'
        check_destinations_are_independent(binding)
        if self.mode != 'auto':
            return path, 0
        is_sum = path in ('linear', 'weighted')
        return path, one_shot_bytes(binding, plan, is_linear=is_sum)

    def _check(self, shard: Shard, size: Any) -> None:
        own = shard.num_own, shard.num_dst
        if size is not None and any(
            n not in (None, expected) for n, expected in zip(size, own, strict=True)
        ):
            raise ValueError(f"expected 'size' to be {own}, the own nodes (got {tuple(size)})")
        if self.conv.explain:
            raise ValueError(f'{type(self.conv).__name__} cannot be explained on a cut graph')


def _one_pass(binding: Binding) -> bool:
    """Whether one pass computes the softmax; see :mod:`pyg_sar.aggregate.online_softmax`."""
    traced = trace(binding, STATISTICS_MODULES)
    if traced.weights is None:
        return False
    return has_gradient_of_use(binding, program_of(binding, traced, num_dst=1))
