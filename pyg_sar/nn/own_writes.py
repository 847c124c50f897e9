"""What code of a program's own changes outside of its conv: globals, classes, closures.

A message runs on a few edges first, then for every block of edges, and again in backward. What it
keeps on the conv is that of all edges at once. What it keeps elsewhere would be that of the last
run, and a count would be that of all runs. Such a message runs once, on the edges of all ranks.

Its bytecode does not tell what is written into. So a message that writes into anything, and reads
something from outside that could change, is taken for one.
"""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from pyg_sar.nn.own_code import is_of_library, own_functions
from pyg_sar.rows.registry import is_in_place, names
from pyg_sar.utils.class_swap import plain_class
from pyg_sar.utils.nested import PLAIN, leaves

_BINDS = ('STORE_GLOBAL', 'DELETE_GLOBAL', 'STORE_DEREF', 'DELETE_DEREF')
_WRITES = ('STORE_ATTR', 'DELETE_ATTR', 'STORE_SUBSCR', 'DELETE_SUBSCR', 'STORE_SLICE')
_NAMES = ('LOAD_GLOBAL', 'LOAD_NAME', 'LOAD_DEREF', 'LOAD_CLASSDEREF')
_ATTRIBUTES = ('LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER_ATTR')
_CHANGES = names(
    'append appendleft extend insert add update subtract pop popleft popitem remove discard clear '
    'setdefault sort reverse setattr delattr next exec globals __setitem__ __setattr__'
)
"""Functions and methods that change an object."""


def writes_elsewhere(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether messages of a conv, whose modules these are, may change what is not on it."""
    of_messages = 'message', 'aggregate', 'edge_update'  # `update` runs once
    return any(
        isinstance(function, FunctionType) and _writes(function, module)
        for module in modules
        for function in own_functions(module, of_messages)
    )


def _writes(function: FunctionType, module: torch.nn.Module) -> bool:
    todo, seen, objects = [function], set[CodeType](), list[Any]()
    writes = False
    while todo:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        outside = _outside(function)
        for instruction in _instructions(function.__code__):
            kind, name = instruction.opname, instruction.argval
            free = function.__code__.co_freevars
            if kind in _BINDS and (kind.endswith('GLOBAL') or name in free):
                return True
            if kind in _ATTRIBUTES:
                found = [vars(cls).get(name) for cls in plain_class(module).__mro__]
                found += [inspect.getattr_static(each, name, None) for each in objects]
                todo += [f for value in found for f in _functions(value)]
                objects += [type(module)] if name == '__class__' else []
                if name not in vars(module):  # such as a list of the class
                    objects += [value for value in found if _changes(value)]
            elif kind in _NAMES and name in outside:
                value = outside[name]
                todo += _functions(value)
                objects += [value] if value is type or _changes(value) else []
            else:
                writes |= kind in _WRITES
                continue
            writes |= name in _CHANGES or (not name.startswith('__') and is_in_place(name))
    return writes and bool(objects)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a function, and of functions and comprehensions in it."""
    yield from dis.get_instructions(code)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _instructions(const)


def _outside(function: FunctionType) -> dict[str, Any]:
    """What a function may read by name, and is not its own; None for what is not yet there."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    free = {name: _content(cell) for name, cell in cells}
    free.pop('__class__', None)  # of super()
    return {**vars(builtins), **function.__globals__, **free}


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _functions(value: Any) -> list[FunctionType]:
    """The program's own function that a value is, or a method of one."""
    if isinstance(value, (MethodType, classmethod, staticmethod)):
        value = value.__func__
    return [value] if isinstance(value, FunctionType) and not is_of_library(value) else []


def _changes(value: Any) -> bool:
    """Whether a value may change: not numbers, functions, and what libraries have."""
    if isinstance(value, (type, classmethod, ModuleType)):
        return not is_of_library(value)
    is_fixed = callable(value) and (isinstance(value, FunctionType) or is_of_library(type(value)))
    fixed = (*PLAIN, torch.dtype, torch.device)
    is_plain = not isinstance(value, (list, dict)) and all(
        isinstance(leaf, fixed) for leaf in leaves(value)
    )
    is_method = isinstance(value, (property, staticmethod, MethodType))
    return not (is_fixed or is_plain or is_method)
