"""The options of a SARConv. Models around it pass them on whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, NamedTuple, get_args

import torch

Mode = Literal['sequential', 'sequential_no_remat', 'one_shot', 'auto']
Path = Literal['linear', 'weighted', 'factored', 'replay', 'gather', 'one_shot']
EXCHANGE_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Options:
    """How convs are computed on a cut graph.

    Attributes:
        mode: ``'sequential'``: one remote part after another, fetched again in backward: least
            memory. ``'sequential_no_remat'``: keeps the rows it received: faster backward, memory
            grows with the halo. ``'one_shot'``: one exchange for all halo rows, then plain PyG:
            memory grows with the halo and its messages. A message with batch norm inside is
            computed so in every mode, as its statistics are of all edges. ``'auto'``: one_shot for
            every call of message passing that fits into `memory_budget`, else sequential; see
            :meth:`pyg_sar.SARConv.chosen_modes`.
        prefetch: How many remote parts travel ahead of the one that is computed, and of how many
            gradients travel back beside it (not in mode one_shot).
        max_rows: In-edges of a chunk of destinations at most (one destination may have more), where
            an aggregation is computed by chunks; None for so many that the largest tensor takes
            2 MiB on a CPU, 256 MiB on a GPU.
        memory_budget: With mode auto, what one call of message passing may hold on a rank in
            one_shot, in bytes: halo rows and messages, with what is kept for backward. It is
            estimated from the shapes at the first call, and the largest estimate of all ranks
            counts. A layer may make several calls (GAT: two).
        exchange_dtype: ``torch.bfloat16`` or ``torch.float16``: wider floating-point rows, and
            their gradients on the way back, are rounded to it while they travel, which halves the
            bytes of float32. **The only approximation here**; None, the default, is exact. Own rows
            are never rounded, sums are made in the tensors' own dtype, and degrees and statistics
            travel as they are. In float16 small gradients vanish and large numbers overflow.
        partial_sums: Whether a rank may send sums of its rows, one for a destination, in the place
            of the rows, where fewer rows travel so by at least a tenth (exact; sums and means of
            ``x_j``, on a CPU also times weights without gradient; not in mode one_shot, nor in
            float16). The ranks agree on it. False always sends the rows.

    Raises:
        ValueError: For values that a SARConv does not take, and for an option that would be
            ignored in this mode.
    """

    mode: Mode = 'sequential'
    prefetch: int = 1
    max_rows: int | None = None
    memory_budget: int | None = None
    exchange_dtype: torch.dtype | None = None
    partial_sums: bool = True

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"'mode' must be one of {get_args(Mode)} (got {self.mode!r})")
        if type(self.prefetch) is not int or self.prefetch < 1:
            raise ValueError(f"'prefetch' must be a positive int (got {self.prefetch!r})")
        for name, value in (('max_rows', self.max_rows), ('memory_budget', self.memory_budget)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"'{name}' must be a positive int or None (got {value!r})")
        if type(self.partial_sums) is not bool:
            raise ValueError(f"'partial_sums' must be True or False (got {self.partial_sums!r})")
        if self.exchange_dtype not in (None, *EXCHANGE_DTYPES):
            raise ValueError(
                f"'exchange_dtype' must be None or one of {EXCHANGE_DTYPES} "
                f'(got {self.exchange_dtype!r})'
            )
        for name, value, default in (
            ('prefetch', self.prefetch, 1),
            ('max_rows', self.max_rows, None),
            ('partial_sums', self.partial_sums, True),
        ):
            if self.mode == 'one_shot' and value != default:
                raise ValueError(f"'{name}' has no meaning in mode 'one_shot' (got {value})")
        if self.mode == 'auto' and self.memory_budget is None:
            raise ValueError("mode 'auto' needs a 'memory_budget' in bytes (got None)")
        if self.mode != 'auto' and self.memory_budget is not None:
            raise ValueError(
                f"'memory_budget' has a meaning in mode 'auto' only (got {self.memory_budget} in "
                f'mode {self.mode!r})'
            )


class ChosenMode(NamedTuple):
    """How one kind of call of message passing is computed.

    Attributes:
        function: ``'GATConv.message'``, ``'GATConv.edge_update'`` ...
        mode: The mode it is computed in.
        one_shot_bytes: What mode one_shot would hold, on the rank where that is most; 0 where the
            memory budget did not decide.
    """

    function: str
    mode: Mode
    one_shot_bytes: int


def options_of(arguments: Mapping[str, Any]) -> Options:
    """The options of a call."""
    names = [field.name for field in fields(Options)]
    for name in arguments:
        if name not in names:
            of_models = ('dropout_seed', 'timeout', 'debug')
            near = get_close_matches(name, [*names, *of_models], 1)
            hint = f'; do you mean {near[0]}?' if near else f', but {", ".join(names)}'
            raise TypeError(f"there is no option '{name}'{hint}")
    return Options(**arguments)
