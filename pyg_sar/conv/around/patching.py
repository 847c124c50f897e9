"""Replaces functions by what is right on a cut graph, for the time of a conv's forward.

Users import ``softmax`` or ``gcn_norm`` under any name. So functions are found by identity, among
the globals of the modules that define the conv's classes, and of the libraries' modules.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import torch

from pyg_sar.comm.turns import put_away_between_turns
from pyg_sar.shard.edge_index import ShardEdgeIndex

_LIBRARY_MODULES = ('torch', 'torch_geometric.utils', 'torch_geometric.nn.conv.gcn_conv')

AnyFn = Callable[..., Any]

_originals: dict[int, AnyFn] = {}
"""What the functions that are bound now stand in for, by their id."""


Places = tuple[tuple[ModuleType, str], ...]


@cache
def _places(classes: frozenset[type], function: AnyFn) -> Places:
    """Where `function` is bound among the globals that `classes` can see."""
    own = {base.__module__ for cls in classes for base in cls.__mro__}.difference(_LIBRARY_MODULES)
    found = _places_in(sorted(name for name in own if not name.startswith('torch.')), function)
    return found + _places_in_libraries(function)


@cache
def _places_in_libraries(function: AnyFn) -> Places:
    return _places_in(_LIBRARY_MODULES, function)  # thousands of names


def _places_in(modules: Iterable[str], function: AnyFn) -> Places:
    return tuple(
        (sys.modules[module], name)
        for module in modules
        if module in sys.modules
        for name, value in vars(sys.modules[module]).items()
        if value is function or _originals.get(id(value)) is function
    )


@contextmanager
def replaced(module: torch.nn.Module, replacements: dict[AnyFn, AnyFn]) -> Iterator[None]:
    """Binds each key's places, as far as `module` and its submodules see them, to its value.

    Inside another one it lasts for its own time, and the outer one's functions come back after it.
    """
    classes = frozenset(type(m) for m in module.modules())
    bound = _Bound()
    _here.all_of.append(bound)
    try:
        for function, replacement in replacements.items():
            bound.add(function, replacement, _places(classes, function))
        yield
    finally:
        _here.all_of.pop()
        bound.take_off()


class _Bound:
    """Functions that are bound now, and what is bound without them."""

    def __init__(self) -> None:
        self.replacements: list[tuple[AnyFn, AnyFn]] = []
        self.places: list[tuple[ModuleType, str, AnyFn, AnyFn]] = []

    def add(
        self, function: AnyFn, replacement: AnyFn, places: Iterable[tuple[ModuleType, str]]
    ) -> None:
        self.replacements.append((function, replacement))
        _originals[id(replacement)] = function
        for place, name in places:
            self.places.append((place, name, getattr(place, name), replacement))
            setattr(place, name, replacement)

    def take_off(self) -> None:
        for place, name, before, _ in reversed(self.places):
            setattr(place, name, before)
        for _, replacement in self.replacements:
            _originals.pop(id(replacement), None)

    def put_on(self) -> None:
        for function, replacement in self.replacements:
            _originals[id(replacement)] = function
        for place, name, _, replacement in self.places:
            setattr(place, name, replacement)


class _Here(threading.local):
    def __init__(self) -> None:
        self.all_of: list[_Bound] = []


_here = _Here()


@put_away_between_turns
def _take_all_off() -> Callable[[], None]:
    """Takes the functions of this thread off; returns what puts them on again."""
    bound = list(_here.all_of)
    for each in reversed(bound):
        each.take_off()

    def put_on() -> None:
        for each in bound:
            each.put_on()

    return put_on


def on_shards(function: AnyFn, form: AnyFn) -> AnyFn:
    """`form` where the function is given the edge_index of a shard, else the function itself."""

    def either(edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = form if isinstance(edge_index, ShardEdgeIndex) else function
        return chosen(edge_index, *args, **kwargs)

    return either


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
