"""What all norms over the rows of all ranks have in common."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from pyg_sar.comm import in_layer

Norm = TypeVar('Norm', bound='GlobalNorm')


class GlobalNorm:
    """A norm with the statistics of all ranks' rows.

    A class has this and the plain norm as its bases, hence the norm's constructor, parameters,
    buffers and state_dict. With one process (``torch.distributed`` is not initialised) it is the
    plain norm.
    """

    is_global = True
    _path = ''
    """The path of the module in the model that :func:`pyg_sar.wrap` was given."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The norm; errors of lost ranks name it."""
        call = super().__call__  # type: ignore[misc]
        if not self._path:
            return call(*args, **kwargs)
        with in_layer(f"layer '{self._path}' ({type(self).__name__.removeprefix('Global')})"):
            return call(*args, **kwargs)

    @classmethod
    def convert(cls: type[Norm], module: torch.nn.Module) -> Norm:
        """Makes a plain norm this one, and returns it: whoever holds it holds the global one."""
        module.__class__ = cls  # type: ignore[assignment]
        return module  # type: ignore[return-value]
