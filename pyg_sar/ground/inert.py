"""Calls that a program does not see: they leave nothing behind.

A model or a message is run once more than the program runs it, to learn shapes or what it does.
What such a call writes must not stay: containers get back what they held, tensors their numbers,
random generators their states. Hooks of users do not see it.
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

from pyg_sar.ground.changes import lazy_copy, version_of
from pyg_sar.ground.random_states import states_of_process
from pyg_sar.ground.scoped import Scoped

_LIBRARIES = ('torch', 'torch_geometric', 'pyg_sar')
_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
_TABLES = ('_parameters', '_buffers', '_modules')
_OF_MODULES = frozenset(vars(torch.nn.Module()))


@contextmanager
def inert(model: torch.nn.Module, given: Any = None) -> Iterator[None]:
    """While it lasts, a call of a model changes nothing that is seen after it.

    What modules with lazy parameters learn stays: their attributes, and random numbers that they
    draw. `given` are the call's arguments.

    Raises:
        ValueError: If a tensor was changed in place that cannot be changed back.
    """
    learning = [
        module
        for module in model.modules()
        if any(is_lazy(t) for t in (*module.parameters(False), *module.buffers(False)))
    ]
    snapshot = Snapshot((model, given), without=learning)
    put_back = states_of_process()
    draws = _Draws()
    handles = []
    for module in learning:
        handles.append(module.register_forward_pre_hook(draws.__enter__, prepend=True))
        handles.append(module.register_forward_hook(draws.__exit__, always_call=True))
    try:
        with without_users_hooks(model.modules()), lazy_draws.set(draws), is_hidden.set(True):
            yield
    finally:
        for handle in handles:
            handle.remove()
        snapshot.restore()
        put_back()
        draws.own()


class _Draws:
    """Numbers that are drawn while it lasts are drawn one after another, as often as it begins.

    Attributes:
        own: Sets the generators to where they are after these numbers alone.
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
"""Whether a model runs that a program does not see; ranks may not have its values in common yet."""

lazy_draws: Scoped[AbstractContextManager[Any]] = Scoped(nullcontext())
"""In what lazy layers draw their values in this thread."""


def is_of_user(hook: Any) -> bool:
    """Whether a hook is none of torch, PyG or pyg_sar."""
    home = getattr(hook, '__module__', None) or type(hook).__module__
    return home.split('.')[0] not in _LIBRARIES


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
    """What is in modules, containers and objects, however deep, and in their tensors.

    Args:
        roots: Where to begin.
        without: Modules whose attributes may change.
    """

    def __init__(self, roots: Any, without: Iterable[torch.nn.Module] = ()) -> None:
        self._held: list[_Held] = []
        self._seen: dict[int, Any] = {id(module): module for module in without}
        left = [('', roots)]
        for module in without:  # what they hold, but not their own tables
            left += [('', each) for each in module.children()]
        while left:
            name, value = left.pop()
            left += self._note(name, value)

    def _note(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """Notes a value; gives what is in it, with the names of attributes."""
        if isinstance(value, _PLAIN) or id(value) in self._seen:
            return []
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            held = None if is_lazy(value) else _HeldTensor.of(name, value)
            self._held += [] if held is None else [held]
            return [] if held is None else [(name, held.grad)]
        if isinstance(value, tuple(_GENERATORS)):
            self._held.append(_HeldGenerator(name, value, _HeldGenerator.state_of(value)))
            return []
        if isinstance(value, np.ndarray):
            if not isinstance(value, np.memmap) and value.dtype != object:
                self._held.append(_HeldArray(name, value, value.copy()))
            return []
        if isinstance(value, (list, deque)):
            self._held.append(_HeldSequence(name, value, [*value]))
            return [(name, each) for each in value]
        if isinstance(value, (tuple, set)):
            if isinstance(value, set):
                self._held.append(_HeldSet(name, value, {*value}))
            return [(name, each) for each in value]
        if isinstance(value, dict):
            self._held.append(_HeldTable(name, value, dict(value)))
            return [(name, each) for each in value.values()]
        if isinstance(value, torch.nn.Module):
            own = {k: v for k, v in vars(value).items() if k not in _OF_MODULES or k == 'training'}
            self._held.append(_HeldModule(name, vars(value), own))
            tables = [value._buffers]
            self._held += [_HeldTable('', table, dict(table)) for table in tables]
            inside = [each for table in _TABLES for each in vars(value)[table].items()]
            return [*inside, *own.items()]
        if _is_of_program(value):
            self._held.append(_HeldTable(name, vars(value), dict(vars(value))))
            return [(name, each) for each in vars(value).values()]
        return []

    def restore(self) -> list[str]:
        """Sets all back; gives the names of the attributes in which something was changed.

        Raises:
            ValueError: If a tensor has changed that cannot be changed back.
        """
        changed = [each for each in self._held if each.is_changed()]
        for each in changed:
            each.put_back()
        return [name for each in changed for name in each.names()]


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
    """A place with what it held."""

    name: str  # of the attribute that it is in
    place: Any
    then: Any

    def names(self) -> list[str]:
        """The attributes that have changed."""
        return [self.name]

    def is_changed(self) -> bool:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError


class _HeldSequence(_Held):
    def is_changed(self) -> bool:
        return len(self.place) != len(self.then) or any(
            a is not b for a, b in zip(self.place, self.then, strict=True)
        )

    def put_back(self) -> None:
        self.place.clear()
        self.place.extend(self.then)


class _HeldSet(_Held):
    def is_changed(self) -> bool:
        return bool(self.place != self.then)

    def put_back(self) -> None:
        self.place.clear()
        self.place.update(self.then)


class _HeldTable(_Held):
    def is_changed(self) -> bool:
        return bool(self.place.keys() != self.then.keys()) or any(
            self.place[key] is not value for key, value in self.then.items()
        )

    def put_back(self) -> None:
        self.place.clear()
        self.place.update(self.then)


class _HeldModule(_Held):
    """The attributes of a module, but its tables of parameters, modules and hooks."""

    def names(self) -> list[str]:
        return self._names

    def is_changed(self) -> bool:
        now = {k: v for k, v in self.place.items() if k not in _OF_MODULES or k == 'training'}
        self._new = now.keys() - self.then.keys()
        gone = {k for k, v in self.then.items() if k not in now or now[k] is not v}
        self._names = sorted(self._new | gone)
        return bool(self._names)

    def put_back(self) -> None:
        for name in self._new:
            del self.place[name]
        self.place.update(self.then)


class _HeldArray(_Held):
    def is_changed(self) -> bool:
        return self.place.tobytes() != self.then.tobytes()

    def put_back(self) -> None:
        self.place[...] = self.then


class _HeldGenerator(_Held):
    @staticmethod
    def state_of(generator: Any) -> Any:
        return next(read for kind, (read, _) in _GENERATORS.items() if isinstance(generator, kind))(
            generator
        )

    def is_changed(self) -> bool:
        return pickle.dumps(self.state_of(self.place)) != pickle.dumps(self.then)

    def put_back(self) -> None:
        for kind, (_, write) in _GENERATORS.items():
            if isinstance(self.place, kind):
                write(self.place, self.then)


_SMALL = 1 << 20
"""Bytes of a tensor that may be copied at once."""


@dataclasses.dataclass(eq=False)
class _HeldTensor(_Held):
    """A tensor, with a copy that takes no memory until one of them is written to."""

    version: object
    grad: Tensor | None

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> _HeldTensor | None:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                return None  # nothing can be written to it
            then, grad = None, tensor.grad if tensor.is_leaf else None
            if tensor.layout == torch.strided and tensor.device.type != 'meta':
                then = lazy_copy(tensor.detach())
                if then is None and tensor.numel() * tensor.element_size() <= _SMALL:
                    then = tensor.detach().clone()
            return cls(name, tensor, then, version_of(tensor), grad)

    def is_changed(self) -> bool:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if self.place.is_leaf and self.place.grad is not self.grad:
                return True
            if self.then is None:
                return self.version != version_of(self.place)
            return not _is_equal(self.place.detach(), self.then)

    def put_back(self) -> None:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            if self.then is None or self.place.shape != self.then.shape:
                raise ValueError(
                    'expected a forward that changes no such tensor in place (got one of shape '
                    f'{tuple(self.place.shape)}, {self.place.layout}): write to a clone of it'
                )
            if self.place.is_leaf and self.place.grad is not self.grad:
                self.place.grad = self.grad
            if not _is_equal(self.place.detach(), self.then):
                self.place.detach().copy_(self.then)


def _is_equal(a: Tensor, b: Tensor) -> bool:
    """Whether numbers are equal, nan included."""
    if a.shape != b.shape or torch.equal(a, b):
        return a.shape == b.shape
    return bool(((a == b) | ((a != a) & (b != b))).all())
