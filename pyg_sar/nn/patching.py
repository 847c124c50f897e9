"""Replaces functions over edges that a conv calls by other forms, on a cut graph.

Users import ``softmax`` or ``gcn_norm`` under any name. So functions are found by identity, among
the globals of the modules that define a conv's classes, and of the libraries' modules. There a
dispatcher replaces each for good: it calls the form that is in force in its thread, or else the
function itself. Threads may each train a model.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import FunctionType
from typing import Any

from pyg_sar.utils.private_names import find_or_none
from pyg_sar.utils.scoped import Scoped

_qualified_name = find_or_none('torch._jit_internal._qualified_name')

AnyFn = Callable[..., Any]
Forms = Mapping[AnyFn, AnyFn]

_FUNCTIONS = {
    'torch_geometric.utils.laplacian': 'get_laplacian',
    'torch_geometric.utils': 'softmax scatter degree to_dense_batch '
    'remove_self_loops add_self_loops add_remaining_self_loops to_edge_index',
    'torch_geometric.nn.conv.gcn_conv': 'gcn_norm',
    'torch_geometric.nn.conv.hgt_conv': 'construct_bipartite_edge_index',
}
"""Functions that may have another form, by the modules from which convs import them."""

forms: Scoped[Forms] = Scoped({})


def _dispatcher(module: str, name: str) -> tuple[AnyFn, AnyFn]:
    """A function, and the dispatcher that calls its form in force."""
    here, function = forms, getattr(import_module(module), name)

    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return here.value.get(function, function)(*args, **kwargs)

    # TorchScript takes the wrapped code, with the overloads of that name and the globals of this.
    namespace = getattr(function, '__globals__', globals())
    dispatcher: Any = FunctionType(dispatch.__code__, namespace, name, None, dispatch.__closure__)
    functools.update_wrapper(dispatcher, function)
    if _qualified_name is not None:
        dispatcher._jit_override_qualname = _qualified_name(function)
    dispatcher.__module__, dispatcher.__qualname__ = module, name  # by which it is pickled
    return function, dispatcher


_dispatchers = dict(
    _dispatcher(module, name) for module, names in _FUNCTIONS.items() for name in names.split()
)
_by_id = {id(function): dispatcher for function, dispatcher in _dispatchers.items()}
_bound: set[type] = set()


def bind_functions(cls: type) -> None:
    """Puts dispatchers where code of `cls` and its bases finds the functions; lasts for good."""
    if cls in _bound:
        return
    modules = {base.__module__ for base in cls.__mro__}.difference(_FUNCTIONS)
    modules = {name for name in modules if not name.startswith('torch.')}
    for module in modules if _bound else modules.union(_FUNCTIONS):
        names = vars(sys.modules[module]) if module in sys.modules else {}
        for name, value in list(names.items()):
            if id(value) in _by_id:
                names[name] = _by_id[id(value)]
    _bound.add(cls)


def replaced(others: Forms) -> AbstractContextManager[None]:
    """While it lasts, code of bound classes runs these forms, and the outer ones of the rest."""
    assert others.keys() <= _dispatchers.keys()
    return forms.set({**forms.value, **others})


@contextmanager
def overridden(owner: object, name: str, value: Any) -> Iterator[None]:
    """Sets an attribute of one object, in front of what its class has, while it lasts."""
    attributes = vars(owner)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = value
    try:
        yield
    finally:
        if before is missing:
            del attributes[name]
        else:
            attributes[name] = before
