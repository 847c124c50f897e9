"""How calls of message passing are computed: all ranks decide once, later forwards look it up.

Before the first exchange of a layer the ranks compare their calls, so that none waits in vain. They
decide together which tensors have one row per edge: on one rank a tensor of weights may have as
many rows as there are edges by chance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_sar.aggregate.program import Arguments
from pyg_sar.comm import agree, check_equal
from pyg_sar.conv.inspect.trace import Trace
from pyg_sar.conv.options import Mode, Path


@dataclass(frozen=True)
class Decision:
    """How one kind of call is computed, the same on all ranks."""

    function: str  # the function's name, with its conv's
    edge_names: frozenset[str]  # the tensors with one row per edge
    path: Path
    mode: Mode  # the mode it is computed in; never ``'auto'``
    one_pass: bool = False  # whether one pass computes its softmax
    # The most that mode one_shot would hold on any rank, in bytes; 0 where it was not asked for.
    one_shot_bytes: int = 0
    trace: Trace | None = None  # what the function does on this rank; None on paths that do not ask
    # The names of the parameters that it reads by itself; None if it has to be traced at every
    # call: it reads a learnable tensor that is no parameter, or sets a number.
    learnable: tuple[str, ...] | None = ()
    drops: bool = False  # whether it draws masks of dropout by edge, or may do so
    has_statistics: bool = False  # whether a module in it takes statistics over the edges

    def learnable_of(self, conv: torch.nn.Module) -> tuple[Tensor, ...]:
        """The learnable tensors themselves; a program may have replaced them since."""
        assert self.trace is not None
        if not self.learnable:
            return self.trace.learnable
        parameters = dict(conv.named_parameters(remove_duplicate=False))
        return tuple(parameters[name] for name in self.learnable)


def names_of(conv: torch.nn.Module, tensors: tuple[Tensor, ...]) -> tuple[str, ...] | None:
    """The names of some parameters of a conv; None if a tensor is none of them."""
    names = {id(tensor): name for name, tensor in conv.named_parameters(remove_duplicate=False)}
    found = [names.get(id(tensor)) for tensor in tensors]
    return None if None in found else tuple(name for name in found if name is not None)


@dataclass
class Decisions:
    """What the ranks have decided for one kind of forward of a conv."""

    local: tuple[Any, ...]  # what the conv was on this rank when they did
    # How each kind of call is computed, in the conv or a module inside it.
    calls: dict[Any, Decision] = field(default_factory=dict)
    # The tensors with one row per edge, where edges have to be turned round.
    turned: dict[Any, list[str]] = field(default_factory=dict)
    # Functions of the whole graph whose inputs all ranks have checked.
    checked: set[str] = field(default_factory=set)
    # Whose rows each of the arguments has, where they are own rows; see rows_of_call.
    spaces: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Offer:
    """What a rank tells the others of a call."""

    types: tuple[Any, ...] = ()  # see :func:`kinds_of`
    # Rows of every tensor that is not read at a node.
    rows: dict[str, int] = field(default_factory=dict)
    num_edges: int = -1  # number of edges on the rank; -1 if the arguments could not be bound
    num_nodes: tuple[int, int] = (0, 0)  # own sources and own destinations of the rank
    # Of every tensor that is read as it is, the sum of its entries.
    sums: dict[str, float] = field(default_factory=dict)
    path: str = ''  # how the rank is going to compute it
    one_pass: bool = False  # whether one pass could compute its softmax here
    one_shot_bytes: int = 0  # what mode one_shot would hold on the rank, where that decides
    has_statistics: bool = False  # whether it has seen it look across edges


def kinds_of(arguments: Arguments) -> tuple[Any, ...]:
    """Kind, dtype, row shape and need of a gradient of every tensor that is read at a node."""
    return tuple(
        (kind, str(t.dtype), tuple(t.shape[1:]), _needs_grad(t))
        for kind, tensors in (('src', arguments.src), ('dst', arguments.dst))
        for t in tensors
    )


def signature(kwargs: dict[str, Any], node_dim: int) -> tuple[Any, ...]:
    """What tells one kind of call from another; it must not depend on the rank.

    Nodes are in dimension `node_dim` of the tensors, edges in the first. Their numbers differ from
    rank to rank and from call to call.
    """
    found = []
    for name, value in sorted(kwargs.items()):
        for tensor in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(tensor, Tensor):
                dims = {0, node_dim % tensor.dim()} if tensor.dim() else set()
                shape = tuple(size for i, size in enumerate(tensor.shape) if i not in dims)
                found.append((name, tensor.dim(), shape, tensor.dtype, _needs_grad(tensor)))
    return tuple(found)


def agree_on_call(
    name: str, call: Offer, error: Exception | None, world_size: int
) -> tuple[frozenset[str], bool, int, bool]:
    """Compares the call of a message function between the ranks (collective: one all-gather).

    Returns the names of the tensors with one row per edge, whether one pass can compute the softmax
    on every rank, the most bytes that mode one_shot would hold on any, and whether one has seen it
    look across edges: the few edges of another may not show it.

    Raises ValueError on all ranks, if the call is wrong on one of them or differs between them.
    With one rank `error` itself is raised.
    """
    if world_size == 1 and error is not None:
        raise error
    told = vars(call), None if error is None else str(error)
    answers = agree(told) if world_size > 1 else [told]
    calls = [Offer(**other) for other, _ in answers]
    edge_names: frozenset[str] = frozenset()
    if all(other.num_edges >= 0 for other in calls):
        check_equal(f'arguments of {name}', sorted(call.rows), [sorted(c.rows) for c in calls])
        edge_names = frozenset(n for n in call.rows if _is_edge_tensor(n, name, calls))
    if error is not None:
        raise ValueError(str(error)) from error
    for rank, (_, other_error) in enumerate(answers):
        if other_error is not None:
            raise ValueError(f'rank {rank}: {other_error}')
    check_equal(f'tensors in {name}', call.types, [other.types for other in calls])
    for whole in call.rows.keys() - edge_names:
        _check_whole(whole, name, calls)
    has_statistics = any(other.has_statistics for other in calls)
    if not has_statistics:
        check_equal(f'path of {name}', call.path, [other.path for other in calls])
    one_pass = all(other.one_pass for other in calls)
    return edge_names, one_pass, max(other.one_shot_bytes for other in calls), has_statistics


def edge_tensors(rows: dict[str, int], num_edges: int) -> list[str]:
    """The names of the tensors that have one row per edge on every rank (collective)."""
    answers = agree({name for name, count in rows.items() if count == num_edges})
    return sorted(set.intersection(*answers))


def _is_edge_tensor(name: str, where: str, calls: list[Offer]) -> bool:
    """Whether a tensor has one row per edge on every rank."""
    has_edge_rows = [call.rows[name] == call.num_edges for call in calls]
    if all(has_edge_rows):
        return True
    # On one rank a tensor of another kind may happen to have as many rows as there are edges.
    if any(has_edge_rows) and len({call.rows[name] for call in calls}) > 1:
        rank = has_edge_rows.index(False)
        raise ValueError(
            f"expected one row per edge in '{name}' of {where}: {calls[rank].num_edges} rows on "
            f'rank {rank} (got {calls[rank].rows[name]})'
        )
    return False


def _check_whole(name: str, where: str, calls: list[Offer]) -> None:
    """Raises for a tensor that a message reads as it is, if it holds the nodes of one rank only."""
    rows = [call.rows[name] for call in calls]
    # Parts may have as many nodes each; a weight may have as many rows, but is the same everywhere.
    is_of_nodes = all(n in call.num_nodes for n, call in zip(rows, calls, strict=True))
    differs = len({call.sums.get(name) for call in calls}) > 1
    if len(set(rows)) > 1 or (is_of_nodes and differs):
        raise ValueError(
            f"expected a tensor that is the same on all ranks in '{name}' of {where} (got {rows} "
            f"rows; rows of nodes are read at the ends of edges, as '{name}_j' and '{name}_i')"
        )


def _needs_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()
