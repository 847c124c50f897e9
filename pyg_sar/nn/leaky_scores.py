"""Finds out whether a message is the softmax of ``leaky_relu(a_j + a_i)``, as in GATConv.

Such weights have a compiled loop of their own (:mod:`pyg_sar.ops.attention_weights`). The run of an
analysis notes which sums and leaky ReLUs it makes, and of what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.rows.rows import plainly
from pyg_sar.utils.tensor_state import version_of

_SUMS = {Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add}


@dataclass(frozen=True)
class LeakyScores:
    """The scores ``leaky_relu(a_j + a_i, slope)`` of edges, by the names of both arguments."""

    source: str
    own: str
    slope: float


@dataclass
class ScoreNotes:
    """The sums and leaky ReLUs that a message has made."""

    # By the id of a tensor, which is kept: its version, the function, and what that got.
    _made: dict[int, tuple[Tensor, Any, Any, Any, Any]] = field(default_factory=dict)

    def note(self, out: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Notes what a function has made."""
        if func is F.leaky_relu or func in _SUMS:
            with plainly():
                self._made[id(out)] = out, version_of(out), func, args, kwargs

    def read(self, logits: Tensor, arguments: Mapping[str, Any]) -> LeakyScores | None:
        """How scores were made of arguments ``..._j`` and ``..._i``, or None."""
        func, args, options = self._of(logits)
        if func is not F.leaky_relu or len(args) != 1 or options.get('inplace'):
            return None
        slope = options.get('negative_slope')
        func, terms, options = self._of(args[0])
        names = [name for term in terms for name, value in arguments.items() if value is term]
        is_sum = func in _SUMS and not options and len(terms) == len(names) == 2
        if not is_sum or not isinstance(slope, float):
            return None
        source, own = sorted(names, key=lambda name: name[-2:], reverse=True)
        is_of_both = source.endswith('_j') and own.endswith('_i')
        return LeakyScores(source, own, slope) if is_of_both else None

    def _of(self, value: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The function that made a tensor, which has not changed since, and what it got."""
        if id(value) in self._made:
            out, version, func, args, options = self._made[id(value)]
            with plainly():
                if version_of(out) == version:
                    return func, args, options
        return None, (), {}
