"""Options and methods of torch's DistributedDataParallel, for programs written for it."""

from __future__ import annotations

from contextlib import suppress
from inspect import signature
from typing import Any, NoReturn

from torch.nn.parallel import DistributedDataParallel

_HARMLESS = (
    *('output_device', 'check_reduction', 'init_sync', 'find_unused_parameters', 'static_graph'),
    'gradient_as_bucket_view',
)
"""Options that change nothing here, whatever they are."""


def drop_harmless(options: dict[str, Any]) -> None:
    """Takes out torch's options that change nothing; raises a TypeError for others of torch's."""
    of_torchs = signature(DistributedDataParallel).parameters
    for name in sorted(options.keys() & of_torchs.keys()):
        if name not in _HARMLESS and options[name] not in (None, of_torchs[name].default):
            raise TypeError(
                f"'{name}' of torch's DistributedDataParallel has no meaning here: leave it out"
            )
        del options[name]


class OfTorchs:
    """What torch's wrapper has: ``model.module`` is the model, a method an error with what to do.

    A model's own attribute of that name stays.
    """

    def __init__(self, instead: str | None = None) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, model: Any, cls: Any = None) -> Any:
        if model is None:
            return self
        own: Any = super(self._owner, model)
        with suppress(AttributeError):
            return getattr(own, self._name)
        with suppress(AttributeError):
            return own.__getattr__(self._name)
        return model if self._instead is None else self._refuse

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(
            f"'{self._name}' of torch's DistributedDataParallel has no meaning here: "
            f'{self._instead}'
        )
