"""One call of message passing: which of its arguments a block of edges gets, and from where.

PyG fixes the roles by name: an argument ``name_j`` is read at an edge's source (exchanged), a
``name_i`` at its destination (local); of the others, a tensor with one row per edge is sliced per
block, and everything else is passed as it is.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.derive_shard import EdgeMove
from pyg_sar.comm.exchange import Exchange
from pyg_sar.nn.dropout import EdgeDraws
from pyg_sar.nn.intercept import MessageError, SourceIndex
from pyg_sar.nn.options import Options
from pyg_sar.nn.source_rows import Ends, StandIn
from pyg_sar.nn.table_reads import TableReads
from pyg_sar.ops.program import Arguments
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.shard.blocks import Plan, plan_of
from pyg_sar.shard.edges import ShardEdges
from pyg_sar.utils.class_swap import name_of

NUM_EDGES = 5
"""How many rows stand for those of a block, each into a destination of its own."""

_IDS, _DOTS = 'edge ids', 'dots of ends'
"""Slots of tensors of edges that no argument has: Python allows none of this name."""


@dataclass(frozen=True)
class _Slot:
    name: str
    role: str  # 'src' | 'dst' | 'edge' | 'whole' | 'constant' | 'stand-in'
    index: int = 0  # among the arguments of its role
    value: Any = None


@dataclass(eq=False, kw_only=True)
class Call:
    """One call of ``propagate``, up to the conv's ``update``, or of ``edge_updater``.

    A call of ``message`` includes ``aggregate``; the hooks of both run.
    """

    conv: MessagePassing
    # ``'message'``, ``'edge_update'``, or ``'factor'``: a message up to what it multiplies x_j by.
    function: str
    names: tuple[str, ...]  # of its arguments; see :func:`arguments_of`
    edge_index: ShardEdges  # as messages pass along it, into own nodes
    size: tuple[int | None, ...] | None
    kwargs: dict[str, Any]  # own rows, and rows in the order of `edge_index`
    edge_names: frozenset[str]  # which of them have a row for every edge
    num_nodes: tuple[int, int]  # sources and destinations, as a program sees them
    as_they_are: dict[str, Any]  # tensors of the whole graph that are no rows of its edges
    move: EdgeMove | None  # of tensors of edges, if the edges were turned round
    edges: EdgeIndex | None  # of the program, if it called with rows of the whole graph
    exchange: Exchange
    options: Options
    in_forward: bool  # whether the conv's own forward takes the result
    tensors: tuple[tuple[torch.nn.Module, str], ...]  # that it reads besides, and may change
    reads_more: bool  # whether its function may read more than the state of the conv
    writes_elsewhere: bool  # whether it may change what is not on the conv
    # By :meth:`bind`:
    plan: Plan = field(init=False)
    arguments: Arguments = field(init=False)  # with nodes or edges in their first dimension
    slots: tuple[_Slot, ...] = field(init=False)
    draws: EdgeDraws | None = field(init=False)  # of its masks of dropout, where drawn by edge
    reads_tables: bool = False  # as the plan of its kind tells
    _ends: tuple[str, ...] = ()  # the arguments in whose place it reads dots

    def bind(self) -> None:
        """Checks the arguments and sorts them into their roles."""
        if self.size is not None:
            self._check_size(self.size)
        self.plan = plan_of(self.edge_index)
        groups: dict[str, list[Tensor]] = {'src': [], 'dst': [], 'edge': [], 'whole': []}
        slots = []
        conv, shard, node_dim = self.conv, self.exchange.shard, int(self.conv.node_dim)
        for name in self.names:
            suffix = name[-2:] if name.endswith(('_i', '_j')) else ''
            base = name[:-2] if suffix else name
            if base not in self.kwargs or name in self.as_they_are:
                continue  # `collect_param_data` knows the default, or complains as PyG does
            value = self.kwargs[base]
            if suffix and isinstance(value, (tuple, list)):
                if len(value) != 2:
                    raise ValueError(f"expected a pair for '{base}' (got {len(value)} entries)")
                value = value[0 if suffix == '_j' else 1]
            if isinstance(value, ShardEdges):
                raise ValueError(
                    f"expected edges as the 'edge_index' of {name_of(conv)} alone (got them as "
                    f"'{base}', too): '{self.function}' has their ends as 'edge_index_j' and "
                    "'edge_index_i'"
                )
            if not isinstance(value, Tensor):
                slots.append(_Slot(name, 'constant', value=value))
                continue
            if suffix:
                role = 'src' if suffix == '_j' else 'dst'
                num_rows = shard.num_own if suffix == '_j' else shard.num_dst
                dim = node_dim + value.dim() if node_dim < 0 else node_dim
                if value.dim() == 0 or value.size(dim) != num_rows:
                    of_all = self.num_nodes[suffix != '_j']
                    raise ValueError(
                        f"expected one row per node in '{base}' of {name_of(conv)}: {of_all} rows, "
                        f'{num_rows} on this rank, in dimension {dim} (got shape '
                        f'{tuple(value.shape)} on this rank): a node that is made in forward is '
                        'added before the graph is cut'
                    )
                value = value if dim == 0 else value.movedim(dim, 0)
            else:
                role = 'edge' if name in self.edge_names else 'whole'
            group = groups[role]
            slots.append(_Slot(name, role, _index_of(value, group) if group else 0))
            if slots[-1].index == len(group):
                group.append(value)
        self.arguments = Arguments(*map(tuple, groups.values()))
        self.slots, self.draws = tuple(slots), None

    def _check_size(self, size: tuple[int | None, ...]) -> None:
        own = self.exchange.shard.num_own, self.exchange.shard.num_dst
        if any(n not in (None, m) for n, m in zip(size, own, strict=True)):
            raise ValueError(
                f"expected 'size' of {name_of(self.conv)} to be {own}, the nodes of this rank "
                f'(got {tuple(size)}): give the number of all nodes, such as '
                'num_edges=data.num_nodes, as edges do not tell of nodes without any'
            )

    def drop_by_edge(self, draws: EdgeDraws, ids: Tensor | None) -> None:
        """Draws masks of dropout by edge; `ids` of the edges become the last edge tensor."""
        self.draws = draws
        if ids is not None:
            edge = self.arguments.edge
            self.slots += (_Slot(_IDS, 'edge', len(edge)),)
            self.arguments = replace(self.arguments, edge=(*edge, ids))

    def of_factor(self, name: str) -> Call:
        """The call that computes, for every edge, what the message multiplies argument `name` by.

        It reads all else that the message reads.
        """
        call = self._without((name,))
        call.function = 'factor'
        return call

    def of_dots(self, ends: Ends, dots: Tensor) -> Call:
        """The call that reads `dots` ``[num_edges, ...]`` in place of the arguments `ends`."""
        call, edge = self._without(ends), self.arguments.edge
        call.slots += (_Slot(_DOTS, 'edge', len(edge)),)
        call.arguments = replace(call.arguments, edge=(*edge, dots))
        call._ends = ends
        return call

    def _without(self, names: tuple[str, ...]) -> Call:
        """The call in which stand-ins take the place of arguments at the ends of edges."""
        call, slots = copy.copy(self), list[_Slot]()
        groups: dict[str, list[Tensor]] = {'src': [], 'dst': []}
        for slot in self.slots:
            if slot.role not in groups:
                slots.append(slot)
                continue
            value, group = getattr(self.arguments, slot.role)[slot.index], groups[slot.role]
            if slot.name in names:
                slots.append(_Slot(slot.name, 'stand-in', value=value))
                continue
            slots.append(_Slot(slot.name, slot.role, _index_of(value, group)))
            group += [value] if slots[-1].index == len(group) else []
        src, dst = map(tuple, groups.values())
        call.slots, call.arguments = tuple(slots), replace(self.arguments, src=src, dst=dst)
        return call

    def samples(self) -> Arguments:
        """Arguments of a few edges, each with nodes of its own: made up, so alike on all ranks."""
        a = self.arguments
        src, dst, edge = (tuple(map(_made_up, group)) for group in (a.src, a.dst, a.edge))
        whole = tuple(t.detach().requires_grad_(t.requires_grad) for t in a.whole)
        return Arguments(src, dst, edge, whole, at_edges=True)

    def in_given_order(self, values: Tensor) -> Tensor:
        """One row per edge, in the order of the caller's edges."""
        return values if self.move is None else self.move.to_forward(values)

    def inputs(
        self, arguments: Arguments, edge_index: Tensor, dst: Tensor, num_dst: int
    ) -> dict[str, Any]:
        """The values that the function may ask for, on some edges.

        `edge_index` refers to the source and edge rows in `arguments`. The function receives `dst`,
        which is ``edge_index[1]`` or a stand-in, as ``index`` and `num_dst` as ``dim_size``.
        """
        values: dict[str, Any] = {
            'index': dst,
            'edge_index_i': dst,
            'edge_index_j': edge_index[0].as_subclass(SourceIndex),
            'ptr': None,
            'size_i': num_dst,
            'size_j': self.num_nodes[0],
            'dim_size': num_dst,
        }
        node_dim = int(self.conv.node_dim)
        dots = next((arguments.edge[s.index] for s in self.slots if s.name == _DOTS), None)
        for slot in self.slots:
            if slot.role == 'constant':
                values[slot.name] = slot.value
                continue
            if slot.role == 'stand-in':
                of_ends = dots if slot.name in self._ends else None
                values[slot.name] = StandIn.like(slot.value, edge_index.size(1), of_ends)
                continue
            value = getattr(arguments, slot.role)[slot.index]
            if slot.role in ('src', 'dst'):
                if not arguments.at_edges:
                    value = value.index_select(0, edge_index[0 if slot.role == 'src' else 1])
                if node_dim not in (0, -value.dim()):
                    value = value.movedim(0, node_dim)
            values[slot.name] = value
        return values

    def run(self, values: dict[str, Any]) -> Tensor:
        """Runs the function on :meth:`inputs`."""
        conv, draws = self.conv, self.draws
        with (
            nullcontext() if draws is None else draws.of(values.get(_IDS)),
            TableReads() if self.reads_tables else nullcontext(),
        ):
            if self.function == 'factor':
                kwargs = conv.inspector.collect_param_data('message', values)
                with torch._C._EnableTorchFunction():
                    message = conv.message(**kwargs)
                return _factor(message)
            kwargs = conv.inspector.collect_param_data(self.function, values)
            if self.function != 'message':  # edge_updater has called its hooks
                out: Tensor = getattr(conv, self.function)(**kwargs)
                return out
            kwargs = before_step(conv, 'message', (kwargs,))[0]
            return after_step(conv, 'message', (kwargs,), conv.message(**kwargs))

    def aggregate(self, values: dict[str, Any], messages: Tensor) -> Tensor:
        """Runs the conv's aggregation on :meth:`inputs` and the messages."""
        conv = self.conv
        kwargs = conv.inspector.collect_param_data('aggregate', values)
        with nullcontext() if self.draws is None else self.draws.of(None, in_aggregation=True):
            kwargs = before_step(conv, 'aggregate', (kwargs,))[0]
            return after_step(conv, 'aggregate', (kwargs,), conv.aggregate(messages, **kwargs))


def _made_up(values: Tensor) -> Tensor:
    """Rows like those of `values`: numbers between 0 and 1, or index zero."""
    rows = values.new_zeros(NUM_EDGES, *values.shape[1:])
    if values.is_floating_point() or values.is_complex():
        steps = torch.arange(rows.numel(), device=rows.device) % 97 + 1
        rows = (steps / 100).view(rows.shape).to(values.dtype)
    return rows.requires_grad_(values.requires_grad)


def arguments_of(conv: MessagePassing, function: str) -> tuple[str, ...]:
    """The names of the arguments that a function reads, ``message`` with its aggregation."""
    functions = ('message', 'aggregate') if function == 'message' else (function,)
    lists = (conv.inspector.get_param_names(f, exclude=conv.special_args) for f in functions)
    return tuple(dict.fromkeys(name for names in lists for name in names))


def before_step(conv: MessagePassing, step: str, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs of a step of message passing, as its pre-hooks leave them."""
    for hook in getattr(conv, f'_{step}_forward_pre_hooks').values():
        result = hook(conv, inputs)
        if result is not None:
            inputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    return inputs


def after_step(conv: MessagePassing, step: str, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
    """The result of a step of message passing, as its hooks leave it."""
    for hook in getattr(conv, f'_{step}_forward_hooks').values():
        result = hook(conv, inputs, out)
        out = out if result is None else result
    return out


def _factor(message: Any) -> Tensor:
    factor = message.factor if isinstance(message, StandIn) else None
    if factor is None:
        raise MessageError('it is not x_j times a factor')
    return factor


def _index_of(value: Tensor, group: list[Tensor]) -> int:
    """The index of a tensor in its group, or the end: equal tensors are exchanged once."""
    for i, other in enumerate(group):
        if other is value or _is_one_view(other, value):
            return i
    return len(group)


def _view_of(value: Tensor) -> Any:
    kind = value.dtype, value.is_conj(), value.is_neg(), value.requires_grad
    return id(value._base), value.shape, value.stride(), value.storage_offset(), kind


def _is_one_view(one: Tensor, other: Tensor) -> bool:
    """Whether two views come from one tensor by one function of torch, with one gradient."""
    if one._base is None or _view_of(one) != _view_of(other):
        return False
    nodes: Any = one.grad_fn, other.grad_fn
    if None in nodes:
        return not one.requires_grad
    is_own = any(isinstance(node, torch.autograd.function.BackwardCFunction) for node in nodes)
    kinds = [(type(node), node.next_functions) for node in nodes]
    return kinds[0] == kinds[1] and not is_own
