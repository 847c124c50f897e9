"""The options of a SARConv, checked in one place; the models around it pass them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch

from pyg_sar.conv.call.paths import Mode

EXCHANGE_DTYPES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Options:
    """How convs are computed; see :class:`pyg_sar.SARConv` for what each option means.

    Raises:
        ValueError: For values that a SARConv does not take, and for an option that would be
            ignored in this mode.
    """

    mode: Mode = 'sequential'
    prefetch: int = 1
    max_rows: int | None = None
    memory_budget: int | None = None
    exchange_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"'mode' must be one of {get_args(Mode)} (got {self.mode!r})")
        if type(self.prefetch) is not int or self.prefetch < 1:
            raise ValueError(f"'prefetch' must be a positive int (got {self.prefetch!r})")
        for name, value in (('max_rows', self.max_rows), ('memory_budget', self.memory_budget)):
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"'{name}' must be a positive int or None (got {value!r})")
        if self.exchange_dtype not in (None, *EXCHANGE_DTYPES):
            raise ValueError(
                f"'exchange_dtype' must be None or one of {EXCHANGE_DTYPES} "
                f'(got {self.exchange_dtype!r})'
            )
        if self.mode == 'one_shot' and self.prefetch != 1:
            raise ValueError(f"'prefetch' has no meaning in mode 'one_shot' (got {self.prefetch})")
        if self.mode == 'one_shot' and self.max_rows is not None:
            raise ValueError(f"'max_rows' has no meaning in mode 'one_shot' (got {self.max_rows})")
        if self.mode == 'auto' and self.memory_budget is None:
            raise ValueError("mode 'auto' needs a 'memory_budget' in bytes (got None)")
        if self.mode != 'auto' and self.memory_budget is not None:
            raise ValueError(
                f"'memory_budget' has a meaning in mode 'auto' only (got {self.memory_budget} in "
                f'mode {self.mode!r})'
            )
