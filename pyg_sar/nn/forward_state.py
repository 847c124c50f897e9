"""Sets a conv to its state in forward while backward runs its message again.

Between forward and backward a model may change: ``model.eval()`` for a metric, other parameters by
``torch.func.functional_call`` or ``load_state_dict(assign=True)``. Autograd keeps what forward
read, so messages that are computed again must read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pyg_sar.utils.nested import PLAIN
from pyg_sar.utils.private_names import missing


def state_of(conv: torch.nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Notes parameters, buffers and plain attributes of a conv and all modules in it.

    Returns a function that makes a context, in which the conv is as it was noted. Plain attributes
    are numbers and words: ``training``, ``dropout``. Tensors are compared by identity; autograd
    finds one that was changed in place.
    """
    noted: list[tuple[Any, dict[str, Any]]] = []
    lists = []  # from which recurrent modules read their parameters
    for module in conv.modules():
        own = vars(module)
        noted += [(t, dict(t)) for t in (module._parameters, module._buffers) if t]
        noted.append((own, {k: v for k, v in own.items() if isinstance(v, PLAIN)}))
        if isinstance(module, torch.nn.RNNBase):
            if '_flat_weights' not in own:
                raise missing('torch.nn.RNNBase._flat_weights')
            lists.append((own['_flat_weights'], list(own['_flat_weights'])))

    @contextmanager
    def as_in_forward() -> Iterator[None]:
        changed = []
        others = [list(now) for now, _ in lists]
        for weights, noted_weights in lists:
            weights[:] = noted_weights
        for now, then in noted:
            other = {k: now[k] for k, v in then.items() if k in now and now[k] is not v}
            if other:
                changed.append((now, other))
                now.update({key: then[key] for key in other})
        try:
            yield
        finally:
            for now, other in changed:
                now.update(other)
            for (weights, _), other_weights in zip(lists, others, strict=True):
                weights[:] = other_weights

    return as_in_forward
