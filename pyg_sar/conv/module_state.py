"""What a conv was in forward, for the time of a backward that runs its message again.

Between forward and backward a model may change: ``model.eval()`` for a metric, other parameters by
``torch.func.functional_call``, ``load_state_dict(assign=True)``. Autograd keeps what forward read,
so messages that are computed again must read it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

_TABLES = ('_parameters', '_buffers')


def state_of(conv: torch.nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Notes parameters, buffers and plain attributes of a conv and all modules in it.

    Plain attributes are numbers and words: ``training``, ``dropout``. Tensors are known by
    identity; one that was changed in place is for autograd to find.

    Returns:
        Brings them about for the time of a context.
    """
    noted = [(table, dict(table)) for table in _tables(conv)]
    plain = [(vars(m), _plain(vars(m))) for m in conv.modules()]

    @contextmanager
    def as_in_forward() -> Iterator[None]:
        changed = [
            (now, {key: now[key] for key in then if key in now}, then)
            for now, then in (*noted, *plain)
            if any(key in now and now[key] is not value for key, value in then.items())
        ]
        for now, before, then in changed:
            now.update({key: then[key] for key in before})
        try:
            yield
        finally:
            for now, before, _ in changed:
                now.update(before)

    return as_in_forward


def _tables(conv: torch.nn.Module) -> Iterator[dict[str, Any]]:
    for module in conv.modules():
        for name in _TABLES:
            yield vars(module)[name]


def _plain(attributes: dict[str, Any]) -> dict[str, Any]:
    kinds = (bool, int, float, str, type(None))
    return {key: value for key, value in attributes.items() if isinstance(value, kinds)}
