"""The counts of a profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyg_sar.utils.meter import Counts


@dataclass
class LayerProfile:
    """What one layer did.

    Attributes:
        path: Where it is in the model: ``'convs.0'``.
        conv: The class of the conv.
        paths: How its calls of message passing are computed: ``'linear'``, ``'weighted'``,
            ``'factored'``, ``'replay'``, ``'gather'`` or ``'one_shot'``; none if it only ran on
            plain edges.
        mode: The mode it ran in.
        forward: Its forward passes.
        backward: Its backward passes, with those of its linear layers.
    """

    path: str
    conv: str
    paths: tuple[str, ...] = ()
    mode: str = ''
    forward: Counts = field(default_factory=Counts)
    backward: Counts = field(default_factory=Counts)


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
    outside: Counts
    start_bytes: int | None
    memory: str

    @property
    def outside_share(self) -> float:
        """The part of `seconds` that passed outside of layers, 0 to 1."""
        spent = self.outside.waiting + self.outside.computing
        return spent / self.seconds if self.seconds else 0.0


def from_dict(summary: dict[str, Any]) -> Summary:
    """The reverse of ``dataclasses.asdict``."""
    passes = ('forward', 'backward')
    layers = [
        LayerProfile(**layer | {name: Counts(**layer[name]) for name in passes})
        for layer in summary['layers']
    ]
    return Summary(**summary | {'layers': layers, 'outside': Counts(**summary['outside'])})
