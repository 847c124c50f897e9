"""The options of a SARConv. Models around it pass them on whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

import torch

Mode = Literal['sequential', 'sequential_no_remat', 'one_shot']
Path = Literal[
    'SpMM', 'SpMM with learned values', 'scalar times x_j', 'replay', 'by destination', 'one_shot'
]


@dataclass(frozen=True)
class Options:
    """How convs are computed on a cut graph.

    Attributes:
        mode: ``'sequential'``: one remote part after another, fetched again in backward: least
            memory. ``'sequential_no_remat'``: keeps rows, and messages without a softmax, for the
            first backward, which is faster: memory grows with the halo and these messages.
            ``'one_shot'``: one exchange for all halo rows, then plain PyG: memory grows with the
            halo and its messages. A message with batch norm inside is computed so in every mode,
            as its statistics are of all edges.
        exchange_dtype: ``torch.bfloat16``: wider floating-point rows, and their gradients on the
            way back, are rounded to it while they travel, which halves the bytes of float32. **The
            only approximation here**; None, the default, is exact. Own rows are never rounded, sums
            are made in the tensors' own dtype, and degrees and statistics travel as they are.
        partial_sums: Whether a rank may send sums of its rows, one for a destination, in the place
            of the rows, where fewer rows travel so by at least a tenth (exact; sums and means of
            ``x_j``, on a CPU also times weights without gradient; not in mode one_shot). The ranks
            agree on it. False always sends the rows.

    Raises:
        ValueError: For values that a SARConv does not take, and for an option that would be
            ignored in this mode.
    """

    mode: Mode = 'sequential'
    exchange_dtype: torch.dtype | None = None
    partial_sums: bool = True

    @property
    def keeps(self) -> bool:
        """Whether rows that were received, or messages, are kept for backward."""
        return self.mode == 'sequential_no_remat'

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(
                f"'mode' must be one of {get_args(Mode)} (got {self.mode!r}): write "
                "mode='sequential'"
            )
        if type(self.partial_sums) is not bool:
            raise ValueError(f"'partial_sums' must be True or False (got {self.partial_sums!r})")
        if self.exchange_dtype not in (None, torch.bfloat16):
            raise ValueError(
                f"'exchange_dtype' must be None or torch.bfloat16 (got {self.exchange_dtype!r})"
            )
        if self.mode == 'one_shot' and not self.partial_sums:
            raise ValueError("'partial_sums' has no meaning in mode 'one_shot' (got False)")


def options_of(arguments: Mapping[str, Any]) -> Options:
    """The options of a call."""
    names = [field.name for field in fields(Options)]
    for name in arguments:
        if name not in names:
            of_models = ('dropout_seed', 'timeout')
            near = get_close_matches(name, [*names, *of_models], 1)
            hint = f'; do you mean {near[0]}?' if near else f', but {", ".join(names)}'
            raise TypeError(f"there is no option '{name}'{hint}")
    return Options(**arguments)
