"""How calls of message passing are computed: all ranks decide once, later forwards look it up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pyg_sar.conv.inspect.trace import Trace
from pyg_sar.conv.options import Mode, Path


@dataclass(frozen=True)
class Decision:
    """How one kind of call is computed, the same on all ranks.

    Attributes:
        function: The function's name, with its conv's.
        edge_names: The tensors with one row per edge.
        path: How the call is computed.
        mode: The mode it is computed in; never ``'auto'``.
        one_pass: Whether one pass computes its softmax.
        one_shot_bytes: The most that mode one_shot would hold on any rank, in bytes; 0 where it was
            not asked for.
        trace: What the function does on this rank; None on paths that do not ask.
        learnable: The names of the parameters that it reads by itself; None if it has to be traced
            at every call: it reads a learnable tensor that is no parameter, or sets a number.
    """

    function: str
    edge_names: frozenset[str]
    path: Path
    mode: Mode
    one_pass: bool = False
    one_shot_bytes: int = 0
    trace: Trace | None = None
    learnable: tuple[str, ...] | None = ()

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
    """What the ranks have decided for one kind of forward of a conv.

    Attributes:
        local: What the conv was on this rank when they did.
        calls: How each kind of call is computed, in the conv or a module inside it.
        turned: The tensors with one row per edge, where edges have to be turned round.
        checked: Functions of the whole graph whose inputs all ranks have checked.
    """

    local: tuple[Any, ...]
    calls: dict[Any, Decision] = field(default_factory=dict)
    turned: dict[Any, list[str]] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
