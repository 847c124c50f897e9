"""What all norms over the rows of all ranks have in common."""

from __future__ import annotations

from typing import TypeVar

import torch

Norm = TypeVar('Norm', bound='GlobalNorm')


class GlobalNorm:
    """A norm with the statistics of all ranks' rows.

    A class has this and the plain norm as its bases, hence the norm's constructor, parameters,
    buffers and state_dict. With one process (``torch.distributed`` is not initialised) it is the
    plain norm.
    """

    is_global = True

    @classmethod
    def convert(cls: type[Norm], module: torch.nn.Module) -> Norm:
        """A global one that shares parameters, buffers, children and hooks with the plain one."""
        out = cls.__new__(cls)
        vars(out).update(vars(module))
        return out
