"""What a process of a program did."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Record:
    """What a process of a program did."""

    steps: list[list[Tensor | None]] = field(default_factory=list)  # parameters and gradients
    lines: list[str] = field(default_factory=list)  # that it printed
    error: str = ''  # its message
    kind: str = ''  # its class
    is_refusal: bool = False  # whether pyg_sar raised it on purpose
    trace: str = ''
