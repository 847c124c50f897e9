"""What a conv is: its class in PyG or in the user's code, and that class's name.

The class of a :class:`pyg_sar.SARConv` is made on the fly. Decisions and messages about a conv use
the class that the user wrote.
"""

from __future__ import annotations

import torch

PLAIN = (bool, int, float, str, type(None))
"""Numbers and words: attributes of a conv that decide what it computes."""


def plain_class(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class of a module; of a SARConv that of the conv it was."""
    return getattr(type(module), '_plain_class', None) or type(module)


def name_of(module: torch.nn.Module) -> str:
    """The name of :func:`plain_class`, for messages."""
    return plain_class(module).__name__
