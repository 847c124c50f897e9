"""Calls of a model that leave nothing behind.

A model or a message runs once more than the program runs it, to learn shapes or what it does. What
such a call writes must not stay: containers get back what they held, tensors their numbers, random
generators their states. Hooks of users do not see it.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
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

LIBRARIES = ('torch', 'torch_geometric', 'pyg_sar')
_HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
_OF_MODULES = frozenset(vars(torch.nn.Module()))


@contextmanager
def dry_run(model: torch.nn.Module, arguments: Any) -> Iterator[None]:
    """In its ``with``, a call of a model changes nothing that a program sees after it.

    What modules with lazy parameters learn stays: their attributes, and random numbers that they
    draw. `arguments` are those of the call. Raises ValueError if a tensor was changed in place that
    cannot be changed back.
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
    """Gives the numbers drawn in its ``with`` generators of their own, which go on at the next."""

    def __init__(self) -> None:
        # Sets the generators to their states after these numbers alone.
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
    return home.split('.')[0] not in LIBRARIES


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

    Attributes of modules in `without` may change.
    """

    def __init__(self, roots: Any, without: Iterable[torch.nn.Module] = ()) -> None:
        self._held: list[_Held | HeldTensor] = []
        self._seen: dict[int, Any] = {id(module): module for module in without}
        left = [('', roots)]
        left += [('', child) for module in without for child in module.children()]
        while left:
            name, value = left.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                left += self._note(name, value)

    def _note(self, name: str, value: Any) -> list[tuple[str, Any]]:
        """Notes a value; gives what is in it, with the names of attributes."""
        if isinstance(value, np.ndarray) and _is_left_out(value):
            return []
        if isinstance(value, Tensor):
            held = None if is_lazy(value) else HeldTensor.of(name, value)
            if held is None:
                return []
            self._held.append(held)
            return [(name, held.grad)]
        if isinstance(value, torch.nn.Module):
            own = vars(value)
            self._hold(name, own, _own_attributes, _set_attributes)
            self._hold('', value._buffers, *_TABLE)
            tables = own['_parameters'], own['_buffers'], own['_modules'], _own_attributes(own)
            return [entry for table in tables for entry in table.items()]
        for kind, read, write in _KINDS:
            if isinstance(value, kind):
                self._hold(name, value, read, write)
                break
        else:
            if not isinstance(value, tuple) and _is_of_program(value):
                value = vars(value)
                self._hold(name, value, *_TABLE)
        if isinstance(value, dict):
            return [(name, item) for item in value.values()]
        is_sequence = isinstance(value, (list, deque, tuple, set))
        return [(name, item) for item in value] if is_sequence else []

    def _hold(self, name: str, value: Any, read: _Read, write: _Write) -> None:
        self._held.append(_Held(name, value, read, write, read(value)))

    @contextmanager
    def copying(self) -> Iterator[None]:
        """In its ``with``, tensors are copied before somebody writes to them."""
        writes = Writes(held for held in self._held if isinstance(held, HeldTensor))
        with GivenAway(writes), writes:
            yield

    def restore(self) -> list[str]:
        """Sets all back, or raises ValueError; gives the names of attributes that had changed."""
        changed = [(held, names) for held in self._held if (names := held.changed())]
        for held, _ in changed:
            held.put_back()
        return [name for _, names in changed for name in names]


_PLAIN = (str, bytes, int, float, complex, type(None), type, torch.dtype, torch.device)


def _is_of_program(value: Any) -> bool:
    """Whether an object is a user's, or one of PyG's that hold data."""
    if isinstance(value, (BaseData, BaseStorage)) or dataclasses.is_dataclass(value):
        return hasattr(value, '__dict__')
    home = type(value).__module__.split('.')[0]
    is_namespace = type(value).__name__ in ('SimpleNamespace', 'Namespace')
    is_library = home in LIBRARIES or (home in sys.stdlib_module_names and home != '__main__')
    return hasattr(value, '__dict__') and (is_namespace or not is_library)


@dataclasses.dataclass(eq=False)
class _Held:
    """A container, an array, a generator or the attributes of a module, and what it held."""

    name: str  # of the attribute that it is in
    value: Any
    read: _Read  # gives a copy of what it holds
    write: _Write
    before: Any

    def changed(self) -> list[str]:
        """The attributes that have changed."""
        now, before = self.read(self.value), self.before
        if self.read is _own_attributes:
            names = now.keys() | before.keys()
            return sorted(n for n in names if now.get(n, self) is not before.get(n, self))
        if isinstance(now, dict):
            is_same = now.keys() == before.keys() and all(now[k] is before[k] for k in now)
        elif isinstance(now, list):
            is_same = len(now) == len(before) and all(map(operator.is_, now, before))
        else:
            is_same = now == before
        return [] if is_same else [self.name]

    def put_back(self) -> None:
        self.write(self.value, self.before)


_Read = Callable[[Any], Any]
_Write = Callable[[Any, Any], object]


def _own_attributes(of_module: dict[str, Any]) -> dict[str, Any]:
    """Attributes of a module, but its tables of parameters, modules and hooks."""
    return {k: v for k, v in of_module.items() if k not in _OF_MODULES or k == 'training'}


def _set_attributes(of_module: dict[str, Any], before: dict[str, Any]) -> None:
    for name in _own_attributes(of_module).keys() - before.keys():
        del of_module[name]
    of_module.update(before)


def _is_left_out(array: np.ndarray[Any, Any]) -> bool:
    return isinstance(array, np.memmap) or array.dtype.hasobject


def _filled(value: Any, before: Any) -> None:
    value.clear()
    (value.extend if isinstance(before, list) else value.update)(before)


def _set_numbers(array: Any, before: bytes) -> None:
    array[...] = np.ndarray(array.shape, array.dtype, before)


class _State:
    """The state of a generator that a program has made; equal where its bytes are."""

    def __init__(self, state: Any) -> None:
        self.state, self._bytes = copy.deepcopy(state), pickle.dumps(state)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _State) and self._bytes == other._bytes

    __hash__ = None  # type: ignore[assignment]


def _of_state(get: _Read, set_to: _Write) -> tuple[_Read, _Write]:
    return lambda it: _State(get(it)), lambda it, state: set_to(it, state.state)


_TABLE: tuple[_Read, _Write] = dict, _filled
_KINDS: list[tuple[Any, _Read, _Write]] = [
    ((list, deque), list, _filled),
    (set, set, _filled),
    (dict, *_TABLE),
    (np.ndarray, np.ndarray.tobytes, _set_numbers),
    (
        torch.Generator,  # not by pickle, which writes the address of the state
        lambda it: it.get_state().numpy().tobytes(),
        lambda it, state: it.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8)),
    ),
    (random.Random, *_of_state(random.Random.getstate, random.Random.setstate)),
    (np.random.RandomState, *_of_state(lambda it: it.get_state(), lambda it, s: it.set_state(s))),
    (
        np.random.Generator,
        *_of_state(
            lambda it: it.bit_generator.state,
            lambda it, state: setattr(it.bit_generator, 'state', state),
        ),
    ),
]
"""What is held: how it is read and set."""
