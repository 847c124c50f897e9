"""Whose rows a norm takes statistics of: those of all ranks, or those of a batch of this rank.

A model is called with the edge_index of a shard, or with the plain one of a batch. Its norms are
given rows alone. So every module that has a conv in it notes what its forward was called with, and
a norm asks for what is noted. Nothing is noted where a program calls a norm from outside of such a
forward: the statistics are those of all ranks' rows then, which is right for batches, too, and
costs collectives.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.typing import SparseTensor

from pyg_sar.comm import world_size
from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.shard.local_ids import LocalIds
from pyg_sar.shard.nested import leaves_of

Edges = Literal['shard', 'batch']


@dataclass(eq=False)
class _Forward:  # one that runs
    module: torch.nn.Module
    edges: Edges | None  # what it was called with
    has_normalized: bool = False  # whether a norm in it has taken statistics of a batch


class _Here(threading.local):
    def __init__(self) -> None:
        self.forwards: list[_Forward] = []
        self.last: Edges | None = None


_here = _Here()


def note_edges_of(modules: Iterable[torch.nn.Module]) -> None:
    """Has modules note in every forward which edges they are called with."""
    for module in modules:
        if _enter not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_enter, with_kwargs=True, prepend=True)
            module.register_forward_hook(_leave, always_call=True)


@torch.compiler.disable
def _enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
    running, edges = _here.forwards, edges_in((args, kwargs))
    for i, each in enumerate(running):
        if each.module is module:  # interrupted from the keyboard, which calls no hooks
            del running[i:]
            break
    if edges == 'shard':
        for outer in (each for each in running if each.edges == 'batch'):
            if outer.has_normalized:
                raise ValueError(
                    f"{type(module).__name__} is called with a shard's edge_index inside of a "
                    f'forward of {type(outer.module).__name__} that was called with plain edges, '
                    f"and whose norms took those for a batch: give the shard's edge_index to "
                    f'{type(outer.module).__name__} as an argument'
                )
            outer.edges = 'shard'
    running.append(_Forward(module, edges))
    if edges is not None and isinstance(module, MessagePassing):
        _here.last = edges


@torch.compiler.disable
def _leave(module: torch.nn.Module, args: Any, out: Any) -> None:
    running = _here.forwards
    while any(each.module is module for each in running):
        left = running.pop()  # those inside that were interrupted, and then its own
        if left.module is module:
            break
    else:
        return
    took_a_batch = left.has_normalized and world_size() > 1
    if took_a_batch and _here.last != 'batch' and out is not None:
        raise ValueError(
            f'the norms in {type(module).__name__} took it for a forward on a batch, as it is '
            'called with a tensor like an edge_index, but no conv has passed messages along it: '
            'call a module without convs in it, whose norms are of all ranks'
        )


def edges_here() -> Edges | None:
    """Which edges the forward that runs was called with; None where nothing tells."""
    found = {each.edges for each in _here.forwards}
    return 'shard' if 'shard' in found else 'batch' if 'batch' in found else None


def last_edges() -> Edges | None:
    """Which edges convs were last called with."""
    return _here.last


def normalized_a_batch() -> None:
    """Notes that a norm in the forward that runs has taken statistics of a batch."""
    for each in _here.forwards:
        each.has_normalized = each.edges == 'batch'


def edges_in(value: Any) -> Edges | None:
    """The kind of edges among arguments: those of a shard if there are any, or plain ones."""
    found: Edges | None = None
    for leaf in leaves_of(value):
        if isinstance(leaf, (LocalIds, EdgeIndex)):
            return 'shard'
        if _are_edges(leaf):
            found = 'batch'
    return found


def _are_edges(value: Any) -> bool:
    if not isinstance(value, Tensor):
        return isinstance(value, SparseTensor)
    if value.layout != torch.strided:
        return True
    return value.dim() == 2 and value.size(0) == 2 and value.dtype in (torch.int64, torch.int32)
