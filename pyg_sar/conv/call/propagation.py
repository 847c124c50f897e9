"""One call of ``propagate`` or ``edge_updater`` on a cut graph: checks it and picks its path."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.faults.errors import place
from pyg_sar.conv.call.by_destination import observe
from pyg_sar.conv.call.decision import (
    Decision,
    Decisions,
    Offer,
    agree_on_call,
    edge_tensors,
    kinds_of,
    names_of,
    signature,
)
from pyg_sar.conv.call.paths import AGGREGATE, Call, program_of, update_edges
from pyg_sar.conv.exchanges import Exchanges, Oriented
from pyg_sar.conv.inspect.independence import (
    check_destinations_are_independent,
    check_edges_are_independent,
)
from pyg_sar.conv.inspect.one_shot_memory import one_shot_bytes
from pyg_sar.conv.inspect.softmax_is_linear import has_gradient_of_use
from pyg_sar.conv.inspect.trace import Trace, trace
from pyg_sar.conv.message.arguments import Binding, after_step, before_step, bind
from pyg_sar.conv.message.intercept import MessageError, StatisticsError, UnsupportedMessageError
from pyg_sar.conv.message.sample_edges import not_saved
from pyg_sar.conv.names import name_of, plain_class
from pyg_sar.conv.options import Options, Path
from pyg_sar.conv.reuse.narrow_exchange import NarrowSum
from pyg_sar.conv.support import takes_statistics
from pyg_sar.dropout import EdgeDraws, edge_draws
from pyg_sar.monitor import say
from pyg_sar.rows.attach import given_to_conv
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import Rows, tag
from pyg_sar.rows.space import Space
from pyg_sar.shard.edge_index import ShardEdgeIndex
from pyg_sar.shard.plan import Plan, plan_of
from pyg_sar.shard.shard import Shard

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class GivenRows:
    """A call of ``propagate`` as a program made it, with rows of the whole graph."""

    edges: EdgeIndex
    dst: Space  # of the rows that it gives
    kwargs: dict[str, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class Propagation:
    """Stands in for ``propagate`` and ``edge_updater`` of one conv for one forward.

    The conv is the SARConv itself or, at `path`, one inside it. New decisions are added to
    `decisions`. `in_forward` says whether the conv's own forward takes what is returned.
    """

    conv: MessagePassing
    path: str
    exchanges: Exchanges
    options: Options
    decisions: Decisions
    in_forward: bool

    def propagate(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.propagate`` over all in-edges of the own nodes, remote ones included."""
        conv = self.conv
        if not isinstance(edge_index, (EdgeIndex, ShardEdgeIndex)):
            return self._along_plain_edges('propagate', edge_index, size, kwargs)
        given = before_step(conv, 'propagate', (edge_index, size, kwargs))
        whole, at_nodes = None, dict[str, Any]()
        if isinstance(given[0], EdgeIndex):
            whole = GivenRows(given[0], _ends(conv, given[0])[1], given[2])
            at_nodes = self._read_as_rows(given[0], given[2])
        edge_index, size, kwargs = _own(conv, *given)
        outs = []
        for layer in _layers(conv, kwargs):
            call, layer = self._call('message', edge_index, size, layer, given[0], at_nodes)
            num_dst = call.plan.shard.num_dst
            out = AGGREGATE[call.decision.path](call)
            values = {'dim_size': num_dst, 'size_i': num_dst, **layer}
            outs.append(self._updated(out, values, whole))
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=-1)
        if whole is not None:
            dst = whole.dst
            if isinstance(out, NarrowSum):
                out.of_nodes(dst)
            elif type(out) is Tensor:
                out = tag(out, int(conv.node_dim) % out.dim(), dst)
        return after_step(conv, 'propagate', given, out)

    def _updated(self, out: Tensor, values: dict[str, Any], given: GivenRows | None) -> Tensor:
        """``MessagePassing.update``: a program over nodes, so of rows it gets rows."""
        conv = self.conv
        if given is None or type(conv).update is MessagePassing.update:
            return conv.update(out, **conv.inspector.collect_param_data('update', values))
        dst = given.dst
        values = values | given.kwargs | {'dim_size': dst.total, 'size_i': dst.total}
        rows = tag(out, int(conv.node_dim) % out.dim(), dst)
        made: Tensor = conv.update(rows, **conv.inspector.collect_param_data('update', values))
        return made

    def edge_updater(self, edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        """``MessagePassing.edge_updater``: one row per edge of `edge_index`, in its order."""
        if not isinstance(edge_index, (EdgeIndex, ShardEdgeIndex)):
            return self._along_plain_edges('edge_updater', edge_index, size, kwargs)
        given = before_step(self.conv, 'edge_update', (edge_index, size, kwargs))
        out = update_edges(self._call('edge_update', *_own(self.conv, *given), given[0])[0])
        if isinstance(given[0], EdgeIndex):
            out = tag(out, 0, given[0]._space)
        return after_step(self.conv, 'edge_update', given, out)

    def _along_plain_edges(
        self, method: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> Tensor:
        """PyG's own method: edges that are equal on all ranks, in ids of the whole graph."""
        named = kwargs if size is None else {'size': size, **kwargs}
        plain_method: Any = getattr(plain_class(self.conv), method)
        out: Tensor = plain_method(self.conv, edge_index, **named)
        return out

    def _call(
        self,
        function: str,
        given: Tensor,
        size: Any,
        kwargs: dict[str, Any],
        edges: Tensor,
        at_nodes: dict[str, Any] | None = None,
    ) -> tuple[Call, dict[str, Any]]:
        """A call with its arguments and decision, and its keyword arguments in the order of edges.

        Collective where the ranks have not decided on a call like this one.
        """
        at_nodes = at_nodes or {}
        oriented, size, kwargs = self._oriented(function, given, size, kwargs)
        edge_index = oriented.edge_index
        exchange = self.exchanges.of_messages(edge_index)
        shard = exchange.shard
        in_training = any(
            getattr(m, 'training', True) for m in self.conv.modules() if takes_statistics(m)
        )
        autocast = torch.is_autocast_enabled(edge_index.device.type)
        kinds = signature(kwargs, int(self.conv.node_dim))
        draws = edge_draws()
        drops = draws is not None
        kinds = *kinds, *sorted(at_nodes)
        key = self.path, function, shard.fingerprint, in_training, autocast, drops, *kinds
        decision = self.decisions.calls.get(key)
        if decision is None:
            with not_saved():
                samples = EdgeDraws() if drops else None
                values = edge_index, size, kwargs, at_nodes
                decision = self._decide(function, shard, *values, samples)
            self.decisions.calls[key] = decision
            text = f'{place()}: {decision.function}, path {decision.path}, mode {decision.mode!r}'
            say(_logger, logging.INFO, text)
        self._check(shard, size)
        plan = plan_of(edge_index, shard)
        binding = bind(self.conv, function, kwargs, plan, decision.edge_names, at_nodes)
        ids = self.exchanges.edge_ids(given, oriented, plan) if decision.drops else None
        binding = binding.dropping(draws, ids)
        if decision.learnable is None:  # what it reads or sets may be another by now
            decision = replace(decision, trace=trace(binding))
        options = self.options.max_rows, self.in_forward
        whole = edges if isinstance(edges, EdgeIndex) else None
        return Call(binding, plan, exchange, oriented, decision, *options, whole), kwargs

    def _oriented(
        self, function: str, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
    ) -> tuple[Oriented, Any, dict[str, Any]]:
        """A call as one whose messages pass from row 0 to row 1 of an edge_index, into own nodes.

        Collective where edges have to be turned round for it.
        """
        against = self.conv.flow != 'source_to_target'
        oriented = self.exchanges.oriented(edge_index, flip=against)
        if against and size is not None:
            size = tuple(size)[::-1]
        if against and not self._is_generated(function):
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
            key, turned = (self.path, *names), self.decisions.turned
            if key not in turned:
                turned[key] = edge_tensors({n: kwargs[n].size(0) for n in names}, num_edges)
            kwargs = kwargs | {name: oriented.to_oriented(kwargs[name]) for name in turned[key]}
        return oriented, size, kwargs

    def _is_generated(self, function: str) -> bool:
        """Whether PyG generated the method for the class.

        PyG's own methods read a pair by the flow of the conv; those that it generates always read
        the first at '_j' and the second at '_i'.
        """
        method = 'propagate' if function == 'message' else 'edge_updater'
        return bool(getattr(plain_class(self.conv), method).__module__.endswith(f'_{method}'))

    @property
    def _read_per_edge(self) -> set[str]:
        """Arguments that message, aggregation or edge_update read as they are."""
        functions = ('message', 'aggregate', 'edge_update')
        names = {n for f in functions for n in self.conv.inspector.get_param_names(f)}
        return {name for name in names if name[-2:] not in ('_i', '_j')}

    def _read_as_rows(self, edges: EdgeIndex, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Rows of nodes that message or aggregation read as they are, not at the ends of edges."""
        ends = edges.ends.src, edges.ends.dst
        return {
            name: kwargs[name]
            for name in sorted(self._read_per_edge & kwargs.keys())
            if isinstance(kwargs[name], Rows) and kwargs[name]._space in ends
        }

    def _decide(
        self,
        function: str,
        shard: Shard,
        edge_index: Tensor,
        size: Any,
        kwargs: dict[str, Any],
        at_nodes: dict[str, Any],
        draws: EdgeDraws | None,
    ) -> Decision:
        """Checks a kind of call once, with all ranks (collective), and picks its path."""
        offer = Offer()
        path: Path = 'one_shot'
        traced: Trace | None = None
        has_statistics = False
        error: Exception | None = None
        try:
            self._check(shard, size)
            plan = plan_of(edge_index, shard)
            binding = bind(self.conv, function, kwargs, plan, at_nodes=at_nodes)
            binding = binding.dropping(draws, None)
            path, traced, needed, has_statistics = self._path(binding, plan)
            one_pass = path == 'replay' and traced is not None and _one_pass(binding, traced)
            takes_gradient = torch.is_grad_enabled() and any(
                t.requires_grad for t in binding.arguments.edge
            )
            told = f'{path}, with gradient' if path == 'weighted' and takes_gradient else path
            offer = Offer(
                kinds_of(binding.arguments),
                binding.rows,
                plan.num_edges,
                (shard.num_own, shard.num_dst),
                binding.sums_of_whole(),
                told,
                one_pass,
                needed,
                has_statistics,
            )
        except Exception as failure:
            error = failure
        name = f'{name_of(self.conv)}.{function}'
        agreed = agree_on_call(name, offer, error, shard.world_size)
        edge_names, one_pass, needed, has_statistics = agreed
        if has_statistics:
            path, traced, one_pass = 'one_shot', None, False
        mode = self.options.mode
        if mode == 'auto':
            assert self.options.memory_budget is not None
            mode = 'one_shot' if needed <= self.options.memory_budget else 'sequential'
            if path == 'replay' and mode == 'one_shot':
                path = 'one_shot'
        learnable: tuple[str, ...] | None = ()
        if traced is not None:  # a number that it sets may be another one at every call
            learnable = None if traced.numbers else names_of(self.conv, traced.learnable)
        # A message with statistics is not traced to its end.
        drops = draws is not None and (draws.has_drawn or (path == 'one_shot' and traced is None))
        return Decision(
            name,
            edge_names,
            path,
            mode,
            one_pass,
            needed,
            traced,
            learnable,
            drops,
            has_statistics,
        )

    def _path(self, binding: Binding, plan: Plan) -> tuple[Path, Trace | None, int, bool]:
        """How a call is computed: in the cheapest way that is exact for what it does.

        Returns the path, what the function does, in mode auto what mode one_shot would hold, in
        bytes, and whether it looks across edges: then it runs on rows of the edges of all ranks.
        """
        if binding.at_nodes:
            return 'one_shot', None, 0, True
        try:
            return (*self._path_of_pieces(binding, plan), False)
        except MessageError:
            return 'one_shot', None, 0, True

    def _path_of_pieces(self, binding: Binding, plan: Plan) -> tuple[Path, Trace | None, int]:
        """How a function that does not look across edges is computed; else a MessageError."""
        path: Path
        traced: Trace | None = None
        try:
            traced = trace(binding)
            num_reductions = 0 if traced.aggregate is None else len(traced.aggregate.calls)
            check_edges_are_independent(binding, num_reductions)
        except StatisticsError:
            raise
        except UnsupportedMessageError:
            observe(binding)
            path, traced = 'gather', None
        else:
            path = 'one_shot' if self.options.mode == 'one_shot' else 'replay'
            if traced.is_linear:
                path = 'linear'
            elif traced.is_weighted:
                path = 'weighted'
        check_destinations_are_independent(binding)
        if self.options.mode != 'auto':
            return path, traced, 0
        is_sum = path in ('linear', 'weighted')
        return path, traced, one_shot_bytes(binding, plan, is_linear=is_sum)

    def _check(self, shard: Shard, size: Any) -> None:
        own = shard.num_own, shard.num_dst
        if size is not None and any(
            n not in (None, expected) for n, expected in zip(size, own, strict=True)
        ):
            raise ValueError(f"expected 'size' to be {own}, the own nodes (got {tuple(size)})")
        if self.conv.explain:
            raise ValueError(
                f'{name_of(self.conv)} cannot be explained on a cut graph: explain the model on a '
                'plain graph, such as the neighbourhood of a node (k_hop_subgraph), with its '
                'weights or on one process'
            )


def _own(
    conv: MessagePassing, edge_index: Tensor, size: Any, kwargs: dict[str, Any]
) -> tuple[Tensor, Any, dict[str, Any]]:
    """The arguments of a call with rows of the whole graph as those of this rank."""
    if not isinstance(edge_index, EdgeIndex):
        return edge_index, size, kwargs
    if size is not None:
        ends = edge_index.ends.src, edge_index.ends.dst
        ends = ends[::-1] if edge_index.handle.is_flipped else ends
        size = tuple(e.own if n == e.total else n for n, e in zip(size, ends, strict=True))
    handle, kwargs = given_to_conv((edge_index, kwargs), [edge_index], name_of(conv))
    return handle, size, kwargs


def _ends(conv: MessagePassing, edge_index: EdgeIndex) -> tuple[Space, Space]:
    """The nodes that messages come from, and those that they go to."""
    ends = edge_index.ends.src, edge_index.ends.dst
    is_against = edge_index.handle.is_flipped != (conv.flow != 'source_to_target')
    return ends[::-1] if is_against else ends


def _layers(conv: MessagePassing, kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments of one call, or of one for each of PyG's decomposed layers."""
    count = conv.decomposed_layers
    if count == 1:
        return [kwargs]
    names = {name[:-2] for name in conv._user_args if name.endswith('_j')}
    parts = {name: kwargs[name].chunk(count, -1) for name in names}
    return [{**kwargs, **{name: parts[name][i] for name in names}} for i in range(count)]


def _one_pass(binding: Binding, traced: Trace) -> bool:
    """Whether one pass computes the softmax; see :mod:`pyg_sar.aggregate.online_softmax`."""
    if traced.weights is None:
        return False
    return has_gradient_of_use(binding, program_of(binding, traced, num_dst=1))
