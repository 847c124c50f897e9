"""The state of a conv. Where it has changed at a forward, the ranks agree anew.

Between forward and backward a model may change: ``model.eval()`` for a metric, other parameters by
``torch.func.functional_call`` or ``load_state_dict(assign=True)``. Autograd keeps what forward
read, so messages that are computed again in backward must read the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from pyg_sar.nn.narrow_exchange import GLOBAL_HOOKS
from pyg_sar.utils.installed import missing
from pyg_sar.utils.nested import PLAIN

_METHODS = ('message', 'aggregate', 'update', 'edge_update', 'propagate', 'edge_updater')
_MESSAGE_HOOKS = ('_propagate', '_message', '_aggregate', '_edge_update')


def state_of_modules(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """Numbers, words, hooks, own methods and children of modules; equal while none has changed."""
    state: list[Any] = [any(GLOBAL_HOOKS)]
    for module in modules:
        table = vars(module)
        state.append(type(module))
        state += table['_modules'].values()
        for name, value in table.items():
            if isinstance(value, PLAIN):
                state += name, value
            elif name.endswith('_hooks'):
                if value and 'state_dict' not in name:
                    state += name, *value.values()
            elif name in _METHODS:
                state += name, value
    return state


def words_of_modules(conv: torch.nn.Module) -> list[str]:
    """The part of a conv's state that must be alike on all ranks, in words."""
    words = []
    for path, module in conv.named_modules():
        if module.training != conv.training:
            words.append(f"'{path}' in {'training' if module.training else 'evaluation'}")
        for name, hooks in vars(module).items():
            if name.startswith(_MESSAGE_HOOKS) and name.endswith('_hooks') and hooks:
                called = (getattr(h, '__qualname__', type(h).__qualname__) for h in hooks.values())
                words.append(f"{name[1:]} of '{path}': {', '.join(called)}")
    return words


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
