"""Calls of a model that leave nothing behind.

A model or a message runs once more than the program runs it, to learn shapes or what it does. What
such a call writes must not stay: containers get back what they held, tensors their numbers, random
generators their states. Hooks of users do not see it.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.data.data import BaseData
from torch_geometric.data.storage import BaseStorage

from pyg_sar.utils.rng import states_of_process
from pyg_sar.utils.scoped import Scoped
from pyg_sar.utils.tensor_state import GivenAway, HeldTensor, Writes

_LIBRARIES = ('torch', 'torch_geometric', 'pyg_sar')
_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
_TABLES = ('_parameters', '_buffers', '_modules')
_OF_MODULES = frozenset(vars(torch.nn.Module()))


@contextmanager
def inert(model: torch.nn.Module, arguments: Any = None) -> Iterator[None]:
    """In its ``with``, a call of a model changes nothing that a program sees after it.

    What modules with lazy parameters learn stays: their attributes, and random numbers that they
    draw. `arguments` are those of the call.

    Raises:
        ValueError: If a tensor was changed in place that cannot be changed back.
    """
    learning = [
        module
        for module in model.modules()
        if any(is_lazy(t) for t in (*module.parameters(False), *module.buffers(False)))
    ]
    snapshot = Snapshot((model, arguments), without=learning)
    put_back = states_of_process()
    draws = _Draws()
    handles = []
    for module in learning:
        handles.append(module.register_forward_pre_hook(draws.__enter__, prepend=True))
        handles.append(module.register_forward_hook(draws.__exit__, always_call=True))
    try:
        hidden = without_users_hooks(model.modules()), is_hidden.set(True)
        with hidden[0], hidden[1], lazy_draws.set(draws), snapshot.copying():
            yield
    finally:
        for handle in handles:
            handle.remove()
        snapshot.restore()
        put_back()
        draws.own()


class _Draws:
    """Gives the numbers drawn in its ``with`` generators of their own, which go on at the next.

    Attributes:
        own: Sets the generators to their states after these numbers alone.
    """

    def __init__(self) -> None:
        self.own = self._others = states_of_process()
        self._depth = 0

    def __enter__(self, *_: Any) -> None:
        self._depth += 1
        if self._depth == 1:
            self._others = states_of_process()
            self.own()

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.own = states_of_process()
            self._others()


is_hidden: Scoped[bool] = Scoped(False)
"""Whether a call that the program does not see runs; its values may differ between ranks."""

lazy_draws: Scoped[AbstractContextManager[Any]] = Scoped(nullcontext())
"""The context in which lazy layers draw their values in this thread."""


def is_of_user(hook: Any) -> bool:
    """Whether a hook is none of torch, PyG or pyg_sar."""
    home = getattr(hook, '__module__', None) or type(hook).__module__
    return home.split('.')[0] not in _LIBRARIES


def described(hook: Any) -> str:
    """A hook by its name and place, ``'log' (train.py:12)``."""
    name = f"'{getattr(hook, '__qualname__', type(hook).__name__)}'"
    code = getattr(getattr(hook, '__func__', hook), '__code__', None)
    return f'{name} ({code.co_filename}:{code.co_firstlineno})' if code else name


@contextmanager
def without_users_hooks(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """While it lasts, users' hooks of these modules are not called."""
    tables = [vars(module)[name] for module in modules for name in _HOOKS]
    before = [(table, table.copy()) for table in tables if any(map(is_of_user, table.values()))]
    for table, _ in before:
        for key in [key for key, hook in table.items() if is_of_user(hook)]:
            del table[key]
    try:
        yield
    finally:
        for table, then in before:
            gone = [key for key, hook in then.items() if not is_of_user(hook) and key not in table]
            new = {key: hook for key, hook in table.items() if key not in then}
            table.clear()
            table.update({key: hook for key, hook in then.items() if key not in gone} | new)


class Snapshot:
    """The content of modules, containers and objects, however deep, and of their tensors.

    Args:
        roots: Where to begin.
        without: Modules whose attributes may change.
    """

    def __init__(self, roots: Any, without: Iterable[torch.nn.Module] = ()) -> None:
        self._held: list[_Held | HeldTensor] = []
        self._seen: dict[int, Any] = {id(module): module for module in without}
        left = [('', roots)]
        left += [('', child) for module in without for child in module.children()]
        while left:
            name, value = left.pop()
            left += self._note(name, value)

    def _note(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """Notes a value; gives what is in it, with the names of attributes."""
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return []
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            held = None if is_lazy(value) else HeldTensor.of(name, value)
            if held is None:
                return []
            self._held.append(held)
            return [(name, held.grad)]
        if isinstance(value, tuple(_GENERATORS)):
            self._held.append(_HeldGenerator(name, value, _HeldGenerator.state_of(value)))
            return []
        if isinstance(value, np.ndarray):
            if not isinstance(value, np.memmap) and value.dtype != object:
                self._held.append(_HeldArray(name, value, value.copy()))
            return []
        if isinstance(value, (list, deque)):
            self._held.append(_HeldSequence(name, value, [*value]))
            return [(name, item) for item in value]
        if isinstance(value, (tuple, set)):
            if isinstance(value, set):
                self._held.append(_HeldSet(name, value, {*value}))
            return [(name, item) for item in value]
        if isinstance(value, dict):
            self._held.append(_HeldTable(name, value, dict(value)))
            return [(name, item) for item in value.values()]
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in vars(value).items() if k not in _OF_MODULES or k == 'training'}
            self._held.append(_HeldModule(name, vars(value), own))
            self._held.append(_HeldTable('', value._buffers, dict(value._buffers)))
            inside = [entry for table in _TABLES for entry in vars(value)[table].items()]
            return [*inside, *own.items()]
        if _is_of_program(value):
            self._held.append(_HeldTable(name, vars(value), dict(vars(value))))
            return [(name, attribute) for attribute in vars(value).values()]
        return []

    @contextmanager
    def copying(self) -> Iterator[None]:
        """In its ``with``, tensors are copied before somebody writes to them."""
        writes = Writes(held for held in self._held if isinstance(held, HeldTensor))
        with GivenAway(writes), writes:
            yield

    def restore(self) -> list[str]:
        """Sets all back; gives the names of the attributes in which something was changed.

        Raises:
            ValueError: If a tensor has changed that cannot be changed back.
        """
        changed = [held for held in self._held if held.is_changed()]
        for held in changed:
            held.put_back()
        return [name for held in changed for name in held.names()]


_PLAIN = (str, bytes, int, float, complex, type(None), type, torch.dtype, torch.device)


def _is_of_program(value: Any) -> bool:
    """Whether an object is a user's, or one of PyG's that hold data."""
    if isinstance(value, (BaseData, BaseStorage)) or dataclasses.is_dataclass(value):
        return hasattr(value, '__dict__')
    home = type(value).__module__.split('.')[0]
    is_namespace = type(value).__name__ in ('SimpleNamespace', 'Namespace')
    is_library = home in _LIBRARIES or (home in sys.stdlib_module_names and home != '__main__')
    return hasattr(value, '__dict__') and (is_namespace or not is_library)


_GENERATORS: dict[type, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    torch.Generator: (torch.Generator.get_state, torch.Generator.set_state),
    random.Random: (random.Random.getstate, random.Random.setstate),
    np.random.RandomState: (np.random.RandomState.get_state, np.random.RandomState.set_state),
    np.random.Generator: (
        lambda generator: copy.deepcopy(generator.bit_generator.state),
        lambda generator, state: setattr(generator.bit_generator, 'state', state),
    ),
}
"""How the state of a generator that a program has made is read and set."""


@dataclasses.dataclass(eq=False)
class _Held:
    """A tensor, container or object, and what it held."""

    name: str  # of the attribute that it is in
    value: Any
    before: Any

    def names(self) -> list[str]:
        """The attributes that have changed."""
        return [self.name]

    def is_changed(self) -> bool:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError


class _HeldSequence(_Held):
    def is_changed(self) -> bool:
        return len(self.value) != len(self.before) or any(
            a is not b for a, b in zip(self.value, self.before, strict=True)
        )

    def put_back(self) -> None:
        self.value.clear()
        self.value.extend(self.before)


class _HeldSet(_Held):
    def is_changed(self) -> bool:
        return bool(self.value != self.before)

    def put_back(self) -> None:
        self.value.clear()
        self.value.update(self.before)


class _HeldTable(_HeldSet):
    def is_changed(self) -> bool:
        return bool(self.value.keys() != self.before.keys()) or any(
            self.value[key] is not value for key, value in self.before.items()
        )


class _HeldModule(_Held):
    """The attributes of a module, but its tables of parameters, modules and hooks."""

    def names(self) -> list[str]:
        return self._names

    def is_changed(self) -> bool:
        now = {k: v for k, v in self.value.items() if k not in _OF_MODULES or k == 'training'}
        self._new = now.keys() - self.before.keys()
        gone = {k for k, v in self.before.items() if k not in now or now[k] is not v}
        self._names = sorted(self._new | gone)
        return bool(self._names)

    def put_back(self) -> None:
        for name in self._new:
            del self.value[name]
        self.value.update(self.before)


class _HeldArray(_Held):
    def is_changed(self) -> bool:
        return self.value.tobytes() != self.before.tobytes()

    def put_back(self) -> None:
        self.value[...] = self.before


class _HeldGenerator(_Held):
    @staticmethod
    def state_of(generator: Any) -> Any:
        readers = (read for kind, (read, _) in _GENERATORS.items() if isinstance(generator, kind))
        return next(readers)(generator)

    def is_changed(self) -> bool:
        return pickle.dumps(self.state_of(self.value)) != pickle.dumps(self.before)

    def put_back(self) -> None:
        for kind, (_, write) in _GENERATORS.items():
            if isinstance(self.value, kind):
                write(self.value, self.before)
