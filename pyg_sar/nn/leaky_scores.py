"""Finds out whether a message is a softmax of leaky scores, as in GATConv and GATv2Conv.

Such weights have compiled loops of their own (:mod:`pyg_sar.ops.attention_weights`). The run of an
analysis notes which sums, products and leaky ReLUs it makes, and of what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pyg_sar.nn.source_rows import PRODUCTS, SUMS
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.utils.tensor_state import version_of

_ADDED = {Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add}
_NOTED = _ADDED | PRODUCTS | SUMS | {F.leaky_relu}


@dataclass(frozen=True)
class LeakyScores:
    """The scores ``leaky_relu(a_j + a_i, slope)`` of edges, by the names of both arguments.

    With `att`, the number of a parameter ``[1, H, C]`` among those of the message, they are the sum
    over channels of these times the parameter.
    """

    source: str
    own: str
    slope: float
    att: int | None


@dataclass
class ScoreNotes:
    """The sums, products and leaky ReLUs that a message has made."""

    # By the id of a tensor, which is kept: its version, the function, and what that got.
    _made: dict[int, tuple[Tensor, Any, Any, Any, Any]] = field(default_factory=dict)

    def note(self, out: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Notes what a function has made."""
        if func in _NOTED:
            with plainly():
                self._made[id(out)] = out, version_of(out), func, args, kwargs

    def read(
        self, logits: Tensor, arguments: Mapping[str, Any], learnable: Sequence[Tensor]
    ) -> LeakyScores | None:
        """How scores were made of arguments ``..._j`` and ``..._i`` and a parameter, or None."""
        leaky, att = self._before_sum(logits, learnable)
        func, args, options = self._of(leaky)
        if func is not F.leaky_relu or len(args) != 1 or options.get('inplace'):
            return None
        slope = options.get('negative_slope')
        func, terms, options = self._of(args[0])
        names = [name for term in terms for name, value in arguments.items() if value is term]
        is_sum = func in _ADDED and not options and len(terms) == len(names) == 2
        if not is_sum or not isinstance(slope, float):
            return None
        source, own = sorted(names, key=lambda name: name[-2:], reverse=True)
        is_of_both = source.endswith('_j') and own.endswith('_i')
        return LeakyScores(source, own, slope, att) if is_of_both else None

    def _before_sum(self, logits: Tensor, learnable: Sequence[Tensor]) -> tuple[Any, int | None]:
        """What was multiplied by a parameter, and its number; `logits` themselves without a sum."""
        func, args, options = self._of(logits)
        if func not in SUMS or len(args) != 1 or options != {'dim': -1}:
            return logits, None
        func, factors, options = self._of(args[0])
        if func not in PRODUCTS or options or len(factors) != 2:
            return None, None
        for rows, factor in (factors, factors[::-1]):
            number = next((i for i, t in enumerate(learnable) if t is factor), None)
            if number is not None and isinstance(rows, Rows):
                with plainly():
                    shape = 1, *rows.shape[1:]
                    is_fit = rows.dim() == 3 and factor.shape == shape
                return (rows, number) if is_fit else (None, None)
        return None, None

    def _of(self, value: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The function that made a tensor, which has not changed since, and what it got."""
        if id(value) in self._made:
            out, version, func, args, options = self._made[id(value)]
            with plainly():
                if version_of(out) == version:
                    return func, args, options
        return None, (), {}
