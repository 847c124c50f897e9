"""What a profile has counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class PassProfile:
    """All forward passes of a layer, or all backward passes.

    Attributes:
        calls: How many there were.
        rows_received: Rows that came from other ranks; where several tensors travel, those of each.
        rows_sent: Rows that went to other ranks.
        bytes_received: Bytes of these rows, as they travelled.
        bytes_sent: Bytes of these rows, as they travelled.
        waiting: Seconds inside operations with other ranks: until rows or sums are there.
        computing: All other seconds.
    """

    calls: int = 0
    rows_received: int = 0
    rows_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    waiting: float = 0.0
    computing: float = 0.0


@dataclass
class LayerProfile:
    """What one layer did.

    Attributes:
        path: Where it is in the model: ``'convs.0'``.
        conv: The class of the conv.
        paths: How its calls of message passing are computed: ``'linear'``, ``'weighted'``,
            ``'replay'``, ``'gather'`` or ``'one_shot'``; ``'plain'`` if it only ran on plain edges.
        mode: The mode of the SARConv.
        forward: Its forward passes.
        backward: Its backward passes, with those of its linear layers.
        peak_bytes: The high-water mark of memory during its passes; None where it is not known.
    """

    path: str
    conv: str
    paths: tuple[str, ...] = ()
    mode: str = ''
    forward: PassProfile = field(default_factory=PassProfile)
    backward: PassProfile = field(default_factory=PassProfile)
    peak_bytes: int | None = None


@dataclass
class Summary:
    """What one rank did while it was profiled.

    Attributes:
        rank: The rank.
        world_size: Number of ranks.
        seconds: From the beginning of the profile to its end.
        layers: The layers, in the order of the model.
        outside: What happened outside of these layers: norms, losses, linear layers, the optimizer.
        start_bytes: Memory in use at the beginning; None where it is not known.
        memory: What memory is: ``'resident'`` of the process, or ``'CUDA allocated'``.
    """

    rank: int
    world_size: int
    seconds: float
    layers: list[LayerProfile]
    outside: PassProfile
    start_bytes: int | None
    memory: str

    @property
    def outside_share(self) -> float:
        """The part of `seconds` that passed outside of layers, 0 to 1."""
        spent = self.outside.waiting + self.outside.computing
        return spent / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The same as numbers, strings, lists and dicts."""
        return {**asdict(self), 'outside_share': self.outside_share}
