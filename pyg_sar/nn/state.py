"""The state of a conv at a forward. Where it has changed, the ranks agree anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from pyg_sar.nn.narrow_exchange import GLOBAL_HOOKS
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
