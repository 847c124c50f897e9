"""One call of ``propagate`` or ``edge_updater`` on a cut graph."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.errors import location
from pyg_sar.comm.exchange import exchange_of
from pyg_sar.comm.vote import vote
from pyg_sar.nn.agreement import Reading
from pyg_sar.nn.analysis import analyze
from pyg_sar.nn.call import Call, after_step, arguments_of, before_step
from pyg_sar.nn.call_edges import (
    METHODS,
    along_edges,
    check_ends,
    dst_sharding,
    edges_in,
    ids_of_edges,
    into_own,
    is_generated,
)
from pyg_sar.nn.dropout import EdgeDraws
from pyg_sar.nn.dropout_forward import edge_draws
from pyg_sar.nn.layer import Layer, running, state_of_modules
from pyg_sar.nn.narrow_exchange import NarrowSum
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.programs import PROGRAMS
from pyg_sar.nn.side_effects import not_saved
from pyg_sar.rows.adjacency import Adjacency
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.from_data import conv_arguments
from pyg_sar.rows.replicated import PLAIN, own_draws
from pyg_sar.rows.rows import Rows, plainly, same_plain, tag
from pyg_sar.rows.sharding import Sharding
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.utils.class_swap import name_of
from pyg_sar.utils.log import say
from pyg_sar.utils.nested import PLAIN as PLAIN_VALUES
from pyg_sar.utils.nested import leaves

_logger = logging.getLogger(__name__)

_MOST_PLANS = 256
"""Plans of a layer that are kept."""


def pass_messages(
    conv: Any, function: str, /, edge_index: Any, size: Any = None, **kwargs: Any
) -> Tensor:
    """``MessagePassing.propagate`` over all in-edges of the own nodes, or ``edge_updater``.

    The first for function ``'message'``; the other, for ``'edge_update'``, gives a row for every
    edge of an edge_index, in its order. Called from outside of forward it is a layer by itself.
    """
    is_message, method, around = function == 'message', METHODS[function], running.value
    if around is not None and conv not in around._sar.paths:
        around = None
    if around is None and (cut_edges := edges_in([edge_index])):
        with conv._on_cut_graph(cut_edges, (), {}, in_forward=False):
            out: Tensor = getattr(conv, method)(edge_index, size, **kwargs)
            return out
    if around is not None and isinstance(edge_index, Adjacency) and not (is_message and conv.fuse):
        edge_index, kwargs = along_edges(conv, function, edge_index, kwargs)
    if around is None or not isinstance(edge_index, (EdgeIndex, ShardEdges)):
        if size is not None:  # PyG's method is without it where the conv never gives one
            kwargs['size'] = size
        out = getattr(conv._plain_class, method)(conv, edge_index, **kwargs)
        return out
    step, arguments = 'propagate' if is_message else function, (edge_index, size, kwargs)
    if getattr(conv, f'_{step}_forward_pre_hooks'):
        arguments = before_step(conv, step, arguments)
    edges = arguments[0] if isinstance(arguments[0], EdgeIndex) else None
    dst = dst_sharding(conv, edges) if is_message and edges is not None else None
    plan, call = _planned(around._sar, conv, function, arguments)
    with own_draws(call.plan.edge_index.device) if plan.uses_rng else nullcontext():
        out = PROGRAMS[plan.path](plan, call)
    if is_message:
        if type(conv).update is not MessagePassing.update or 'update' in vars(conv):
            out = _updated(out, call, dst, arguments[2])
        if isinstance(out, NarrowSum) and dst is not None:
            out._sharding = dst
        elif type(out) is Tensor and dst is not None:
            out = tag(out, int(conv.node_dim) % out.dim(), dst)
    elif isinstance(out, Tensor):
        out = out if call.move is None else call.move.to_forward(out)
        out = out if edges is None else tag(out, 0, edges._sharding)
    if getattr(conv, f'_{step}_forward_hooks'):
        out = after_step(conv, step, arguments, out)
    return out


def _updated(out: Tensor, call: Call, dst: Sharding | None, kwargs: dict[str, Any]) -> Tensor:
    """What the conv's ``update`` gives, on nodes: it gets rows where the conv got rows."""
    conv, num_dst = call.conv, call.exchange.shard.num_dst
    values = call.kwargs
    if dst is not None:
        values, num_dst = values | kwargs, dst.total
        if isinstance(out, Tensor):  # a tuple or dict has rows
            out = tag(out, int(conv.node_dim) % out.dim(), dst)
    sizes = {'dim_size': num_dst, 'size_i': num_dst, 'size_j': call.num_nodes[0], 'ptr': None}
    updated: Tensor = conv.update(
        out, **conv.inspector.collect_param_data('update', sizes | values)
    )
    return updated


def _planned(
    layer: Layer, conv: MessagePassing, function: str, arguments: tuple[Any, ...]
) -> tuple[Plan, Call]:
    """How a call is computed, and the call, with its arguments sorted.

    `arguments` are the program's: the edge_index, the size and the named ones. Collective.
    """
    call = _call(layer, conv, function, arguments)
    draws, shard = edge_draws(), call.exchange.shard
    device = call.edge_index.ids.device.type
    fingerprint = (
        *(layer.words, layer.paths[conv], function, shard.fingerprint),
        *(torch.is_autocast_enabled(device), draws is not None),
        *(*call.as_they_are, *sorted(call.edge_names)),
        *_kinds_in(call.kwargs, int(conv.node_dim)),
    )
    reading, samples = None, None if draws is None else EdgeDraws()
    if call.reads_more:  # what it reads may be other attributes, globals or arguments every time
        with not_saved():
            reading = Reading(call, samples)
        fingerprint += (reading.plan.key,)
    plan = layer.plans.get(fingerprint)
    if reading is not None and shard.world_size > 1:
        is_known, words = plan is not None, reading.plan.words
        counts = vote('how messages are computed', is_known, fingerprint=words)
        plan = plan if counts == [shard.world_size] else None
    if plan is None:
        with not_saved():
            reading = reading or Reading(call, samples)
            plan = reading.agreed()
        # What a rank reads now and then does not say what another one reads then.
        if not call.reads_more or plan.across_edges == reading.plan.across_edges:
            layer.plans[fingerprint] = plan
        if len(layer.plans) > _MOST_PLANS:  # of numbers that are others at every call
            layer.plans.pop(next(iter(layer.plans)))
        text = f'{location()}: {plan.function}, path {plan.path}, mode {call.options.mode!r}'
        say(_logger, logging.INFO, text)
    call.bind()
    call.reads_tables = plan.reads_tables
    if draws is not None:
        edges = arguments[0]
        handle = edges._handle if isinstance(edges, EdgeIndex) else edges
        ids = ids_of_edges(handle, call.move, call.plan) if plan.drops else None
        call.drop_by_edge(draws, ids)
    if plan.parameters is None:
        found = analyze(call) if reading is None else reading.plan
        plan = replace(plan, learnable=found.learnable)
    return plan, call


def _call(layer: Layer, conv: MessagePassing, function: str, arguments: tuple[Any, ...]) -> Call:
    """A call as one whose messages pass from row 0 to row 1 of an edge_index, into own nodes.

    Collective where edges have to be turned round for it.
    """
    edge_index, size, kwargs = arguments
    names = layer.names.get((conv, function))
    if names is None:
        names = layer.names[conv, function] = arguments_of(conv, function)
    per_edge = [n for n in names if n in kwargs and n[-2:] not in ('_i', '_j')]
    edges, handle, as_they_are = None, edge_index, dict[str, Any]()
    against = conv.flow != 'source_to_target'
    at = not against or is_generated(conv, function)  # which entry of a pair targets have
    if isinstance(edge_index, EdgeIndex):
        edges, handle = edge_index, edge_index._handle
        ends = edges.ends.src, edges.ends.dst
        for name in per_edge:
            if kwargs[name] is not None and _is_read_as_it_is(kwargs[name], edges):
                as_they_are[name] = kwargs[name]
        if size is not None:
            along = ends[::-1] if handle.is_flipped else ends
            own = zip(size, along, strict=True)
            size = tuple(end.own if n == end.total else n for n, end in own)
        num_edges, whole = edges._sharding.total, kwargs
        num_nodes = ends[0].total, ends[1].total
        num_nodes = num_nodes[::-1] if handle.is_flipped != against else num_nodes
        if num_nodes[0] != num_nodes[1]:
            sizes = (None, None) if size is None else tuple(size)[:: -1 if against else 1]
            _check_tells_sizes(conv, function, sizes, names, kwargs, at)
        if ends[0] is not ends[1]:
            check_ends(conv, names, kwargs, edges, at)
        kwargs = _own(kwargs, edges, conv)
    else:  # of HGTConv, which computes with own rows
        num_edges, whole = handle.num_edges, kwargs
        num_nodes = handle.shard.num_own, handle.shard.num_dst
    edge_names = set()
    for name in per_edge:
        value: Any = None if name in as_they_are else whole[name]
        if isinstance(value, Rows):
            if value._dim == 0 and value._sharding.total == num_edges:
                edge_names.add(name)
        elif isinstance(value, Tensor) and value.dim() and value.size(0) == num_edges:
            edge_names.add(name)
    oriented, move = handle, None
    if against or handle.is_flipped:
        oriented, move = into_own(handle, flip=against)
    if against and size is not None:
        size = tuple(size)[::-1]
    if not at:
        kwargs = {
            name: value[::-1] if isinstance(value, (tuple, list)) and len(value) == 2 else value
            for name, value in kwargs.items()
        }
    if move is not None:
        kwargs = kwargs | {n: move.to_reversed(kwargs[n]) for n in sorted(edge_names)}
    options = layer.options
    return Call(
        conv=conv,
        function=function,
        names=names,
        edge_index=oriented,
        size=size,
        kwargs=kwargs,
        edge_names=frozenset(edge_names),
        num_nodes=num_nodes,
        as_they_are=as_they_are,
        move=move,
        edges=edges,
        exchange=exchange_of(oriented.shard, dtype=options.exchange_dtype),
        options=options,
        in_forward=layer.in_forward,
        reads_more=layer.reads_more or _may_be_another(layer, kwargs.values()),
        writes_elsewhere=layer.writes_elsewhere,
        tensors=layer.tensors,
    )


def _check_tells_sizes(
    conv: MessagePassing,
    function: str,
    size: tuple[int | None, ...],
    names: tuple[str, ...],
    kwargs: dict[str, Any],
    at: int,
) -> None:
    """Raises a ValueError where PyG takes the number of one set of nodes for that of the other.

    That is so where a set has neither a `size`, of sources and targets, nor a tensor with a row for
    each; entry `at` of a pair has those of targets. Results have a row for each target.
    """
    told = {end for end, number in zip(('_j', '_i'), size, strict=True) if number is not None}
    for name in names:
        end, value = name[-2:], kwargs.get(name[:-2])
        if end in ('_i', '_j') and isinstance(value, (tuple, list)) and len(value) == 2:
            ends = zip(('_i', '_j'), (value[at], value[not at]), strict=True)
            told |= {end for end, entry in ends if isinstance(entry, Tensor)}
        elif isinstance(value, Tensor):
            told.add(end)
    if {'_i', '_j'} <= told:
        return
    steps = ('message', 'aggregate', 'update') if function == 'message' else (function,)
    read = {name for step in steps for name in conv.inspector.get_param_names(step)}
    needs_targets = function == 'message' or not read.isdisjoint(('size_i', 'dim_size'))
    for end, what, is_read in (('_i', 'target', needs_targets), ('_j', 'source', 'size_j' in read)):
        if is_read and end not in told:
            raise ValueError(
                f"expected 'size' in {METHODS[function]} of {name_of(conv)}, as its edges run "
                f'between two sets of nodes and no argument has a row for each {what} (got None): '
                'give size=(number of sources, number of targets)'
            )


def _is_read_as_it_is(value: Any, edges: EdgeIndex) -> bool:
    """Whether a tensor has a row for every node, or edges in another dimension than the first.

    It may also be a table of as many other things. Of tuples, lists and dicts: whether they hold
    rows, or tensors of all edges.
    """
    if not isinstance(value, Tensor):
        total = edges._sharding.total
        tensors = [each for each in leaves(value) if isinstance(each, Tensor)]
        return any(isinstance(t, (Rows, EdgeIndex)) or total in t.shape for t in tensors)
    ends = edges.ends.src, edges.ends.dst
    if isinstance(value, Rows):
        is_of_edges = value._dim > 0 and value._sharding.total == edges._sharding.total
        return value._sharding in ends or is_of_edges
    if type(value) not in PLAIN or not value.dim():
        return False
    if value.size(0) != edges._sharding.total and edges._sharding.total in value.shape[1:]:
        return True
    return not edges._sharding.is_whole and value.size(0) in [end.total for end in ends]


def _own(kwargs: dict[str, Any], edges: EdgeIndex, conv: MessagePassing) -> dict[str, Any]:
    """Rows of the whole graph as those of this rank."""
    shardings = edges.ends.src, edges.ends.dst, edges._sharding
    own: dict[str, Any] = {}
    with plainly():
        for name, value in kwargs.items():
            parts = value if type(value) is tuple else (value,)
            if all(v is None or (type(v) is Rows and v._sharding in shardings) for v in parts):
                parts = tuple(None if v is None else same_plain(v) for v in parts)
                own[name] = parts if type(value) is tuple else parts[0]
            else:
                own[name] = conv_arguments(value, [edges], name_of(conv))
    return own


def _may_be_another(layer: Layer, values: Iterable[Any]) -> bool:
    """Whether a call may be computed otherwise than the fingerprint tells."""
    has_changed = layer.has_own_code and state_of_modules(layer.modules) != layer.state
    return has_changed or _has_objects(values)


def _has_objects(values: Iterable[Any]) -> bool:
    """Whether there is more than tensors, numbers and words: functions, modules, dicts."""
    known = (Tensor, *PLAIN_VALUES, EdgeIndex, ShardEdges, Adjacency)
    return any(
        _has_objects(value) if isinstance(value, (tuple, list)) else not isinstance(value, known)
        for value in values
    )


def _kinds_in(kwargs: dict[str, Any], node_dim: int) -> list[Any]:
    """What tells one kind of call from another; it must not depend on the rank.

    Nodes are in dimension `node_dim` of the tensors, edges in the first. Their numbers differ from
    rank to rank and from call to call.
    """
    kinds: list[Any] = []
    with_gradients = torch.is_grad_enabled()
    for name, value in kwargs.items():
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, PLAIN_VALUES):
                kinds.append((name, type(tensor), tensor))  # another may be another message
            elif isinstance(tensor, Tensor):
                shape, dims = list(tensor.shape), tensor.dim()
                for i in {0, node_dim % dims} if dims else ():
                    shape[i] = -1
                needs_grad = tensor.requires_grad and with_gradients
                kinds.append((name, *shape, tensor.dtype, needs_grad))
    return kinds
