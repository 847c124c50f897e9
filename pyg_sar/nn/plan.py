"""How a kind of call of message passing is computed, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from pyg_sar.nn.leaky_scores import LeakyScores
from pyg_sar.nn.options import Path
from pyg_sar.nn.reductions import Aggregate
from pyg_sar.nn.source_rows import Ends, RowSum
from pyg_sar.ops.program import Arguments
from pyg_sar.rows.one_loss import for_rows

_NONE = torch.empty(0)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a kind of call is computed, and what one run of its function has found.

    Tensors have a row for each of a few edges, or destinations, for their shapes and dtypes.
    """

    path: Path
    function: str  # its name, with its conv's
    across_edges: bool = False  # whether it needs the edges of all ranks: no more is known then
    out: Tensor = _NONE  # its result; by destination that of its aggregation
    # What it computes per edge: the attributes, after the result of `edge_update` or the factor.
    edge_outputs: tuple[Tensor, ...] = ()
    edge_attributes: tuple[str, ...] = ()  # of the conv that it sets to a row for every edge
    written: tuple[str, ...] = ()  # the rows of nodes that it changes in place
    messages: tuple[Tensor, ...] = ()  # what the conv's aggregation reduces
    aggregate: Aggregate | None = None  # that aggregation; None for ``edge_update``
    is_sum: bool = False  # whether it is a sum or a mean alone, hooks aside
    is_hooked: bool = False  # whether it has hooks on this rank
    weights: Tensor | None = None  # the result of its softmax over in-edges, if it has one
    # What these weights are made of, if it gives them and nothing else and that is all it reads.
    scores: LeakyScores | None = None
    ends: Ends | None = None  # the arguments x_j and x_i of which it reads dots alone
    edge_bytes: int = 0  # what the largest tensor that it computes takes per edge
    reads_tables: bool = False  # whether ids of edges index a tensor with gradients
    uses_rng: bool = False  # whether it draws by a generator of torch, or may do so
    are_read: tuple[bool, ...] = ()  # of its arguments: whether its result has their gradient
    drops: bool = False  # whether it draws masks of dropout by edge, or may do so
    # The leaf tensors that it reads besides its arguments; which parameters they are, by module and
    # name, or None if one is no parameter: then every call is analysed.
    learnable: tuple[Tensor, ...] = ()
    parameters: tuple[tuple[ref[torch.nn.Module], str], ...] | None = ()
    # By destination: whether it makes dense batches, and whether it reads sizes of the whole graph.
    is_dense: bool = False
    reads_sizes: bool = False
    # If it sums x_j, or a factor times x_j:
    source: str = ''  # the name of x_j
    weight: int | None = None  # the index of the factor among the edge tensors, if it is one
    summed: RowSum | None = None  # which of the heads of the product are summed
    # The narrower layer that comes first, or None; once ranks have agreed, for the loaded edges.
    narrower: list[Any] = field(default_factory=list)

    @cached_property
    def words(self) -> str:
        """What the run has found, in words that are equal on all ranks."""
        names = (each.name for each in fields(self))
        objects = 'narrower', 'learnable', 'parameters'
        return str([_words(getattr(self, name)) for name in names if name not in objects])

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal to that of another run, if this has found the same."""
        return self.words, self.parameters

    def learnable_now(self) -> tuple[Tensor, ...]:
        """The leaf tensors as they are now: a program may have replaced parameters."""
        if self.parameters is None:
            return self.learnable
        return tuple([getattr(module(), name) for module, name in self.parameters])

    def arguments(self, arguments: Arguments, analysed: Arguments) -> Arguments:
        """A call's, with leaf tensors as they are now.

        Those of the `analysed` call that are not read get no gradient, as in PyG, and no zeros.
        """
        if not all(self.are_read):
            edge = analysed.edge[: len(self.are_read) - len([*analysed]) or None]  # no ids of masks
            tensors = *analysed.src, *analysed.dst, *edge, *analysed.whole
            are_read = [*zip(tensors, self.are_read, strict=True)]
            unread = {id(t) for t, _ in are_read} - {id(t) for t, is_read in are_read if is_read}
            detached = [t.detach() if id(t) in unread else t for t in arguments]
            arguments = Arguments.of(arguments.counts, detached)
        learnable = self.learnable_now()
        whole, instead = (tuple(map(for_rows, each)) for each in (arguments.whole, learnable))
        return replace(arguments, whole=whole, learnable=learnable, instead=instead)


def _words(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, Aggregate):
        return value.calls, [r.dim for r in value.reductions]
    return [*map(_words, value)] if isinstance(value, tuple) else value
