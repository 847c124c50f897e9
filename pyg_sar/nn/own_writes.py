"""What code of a program's own changes outside of its conv: globals, classes, closures.

A message runs on a few edges first, then for every block of edges, and again in backward. What it
keeps on the conv is that of all edges at once. What it keeps elsewhere would be that of the last
run, and a count would be that of all runs. Such a message runs once, on the edges of all ranks.

The source tells what is written: to a name that is declared global or nonlocal, or to a part of
what a name from outside holds. Names that are set to such a part are from outside, too.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from pyg_sar.nn.own_code import is_of_library, own_functions
from pyg_sar.rows.registry import is_in_place, names
from pyg_sar.utils.class_swap import plain_class
from pyg_sar.utils.nested import PLAIN

_CHANGES = names(
    'append appendleft extend insert add update subtract pop popleft popitem remove discard clear '
    'setdefault sort reverse __setitem__ __setattr__ __delitem__'
)
"""Methods that change an object."""

_FUNCTIONS = names('setattr delattr next exec')
"""Functions that change their first argument."""

_STORES = names('STORE_ATTR STORE_SUBSCR STORE_SLICE STORE_GLOBAL STORE_DEREF DELETE_SUBSCR')
_CALLED = ('__call__', 'forward', '__enter__', '__exit__')


def writes_elsewhere(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether messages of a conv, whose modules these are, may change what is not on it."""
    of_messages = 'message', 'aggregate', 'edge_update'  # `update` runs once
    todo = [
        _Function(function, module)
        for module in modules
        for function in own_functions(module, of_messages)
        if isinstance(function, FunctionType)
    ]
    seen = set[Any]()
    while todo:
        function = todo.pop()
        if function.key not in seen:
            seen.add(function.key)
            if function.writes():
                return True
            todo += function.calls()
    return False


class _Function:
    """A function of the program; `module` is what its first argument is, a conv or an inner one.

    With `is_outside` the first argument is an object from outside.
    """

    def __init__(
        self, function: FunctionType, module: torch.nn.Module, is_outside: bool = False
    ) -> None:
        self._module, self._globals = module, {**vars(builtins), **function.__globals__}
        self.key = function.__code__, is_outside
        code = function.__code__
        cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
        self._cells = {name: _content(cell) for name, cell in cells if name != '__class__'}
        self._nodes, self._unread = _source_of(code)
        self._own = {*code.co_varnames, *code.co_cellvars} - {*code.co_freevars}
        self._self = code.co_varnames[0] if code.co_argcount else ''
        defaults = function.__defaults__ or ()
        last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        self._outside = {n for n, v in zip(last, defaults, strict=True) if _may_change(v)}
        self._outside |= {self._self} if is_outside else set()
        for _ in range(2):  # as a name may be set further below
            for target, value in self._set():
                if isinstance(target, ast.Name) and self._is_outside(value):
                    self._outside.add(target.id)

    def _set(self) -> Iterator[tuple[Any, Any]]:
        """Targets of assignments and loops, with the values."""
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                yield from ((target, node.value) for target in node.targets)
            elif isinstance(node, (ast.For, ast.comprehension)):
                yield node.target, node.iter
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                yield node.target, node.value

    def writes(self) -> bool:
        """Whether it writes to what is from outside."""
        if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in self._nodes):
            return True
        if any(map(_changes, self._unread)):
            values = (self._value(name) for name in self._unread)
            return any(map(_may_change, values)) or any(map(self._is_of_class, self._unread))
        written = [target for target, _ in self._set()]
        for node in self._nodes:
            if isinstance(node, ast.Delete):
                written += node.targets
            elif isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Attribute):
                    written += [function] if _changes(function.attr) else []
                elif isinstance(function, ast.Name) and function.id in _FUNCTIONS and node.args:
                    written.append(ast.Attribute(node.args[0], ''))
        parts = (ast.Attribute, ast.Subscript)
        return any(isinstance(t, parts) and self._is_outside(t.value) for t in written)

    def _is_outside(self, value: Any) -> bool:
        """Whether an expression is an object from outside that may change, or a part of one."""
        if isinstance(value, ast.Attribute):
            if value.attr == '__class__' or self._is_outside(value.value):
                return True
            is_own = isinstance(value.value, ast.Name) and value.value.id == self._self
            return is_own and self._is_of_class(value.attr)
        if isinstance(value, ast.Subscript):
            return self._is_outside(value.value)
        if isinstance(value, ast.Call):
            return isinstance(value.func, ast.Name) and value.func.id in ('type', 'vars', 'globals')
        if not isinstance(value, ast.Name):
            return False
        return value.id in self._outside or (
            value.id not in self._own and _may_change(self._value(value.id))
        )

    def _value(self, name: str) -> Any:
        return self._cells[name] if name in self._cells else self._globals.get(name)

    def _is_of_class(self, name: str) -> bool:
        """Whether an attribute of the first argument is its class's, such as a list."""
        found = inspect.getattr_static(plain_class(self._module), name, None)
        is_state = any(
            name in vars(self._module).get(kind, ()) for kind in ('_modules', '_buffers')
        )
        return not is_state and name not in vars(self._module) and _may_change(found)

    def calls(self) -> Iterator[_Function]:
        """The functions of the program that it may call."""
        for node in self._nodes:
            if isinstance(node, ast.Attribute):
                owner = self._found(node.value)
                is_own = isinstance(node.value, ast.Name) and node.value.id == self._self
                if is_own or (isinstance(node.value, ast.Call) and self._self):  # of super()
                    for cls in plain_class(self._module).__mro__:
                        yield from self._of(vars(cls).get(node.attr), self._self in self._outside)
                elif owner is not None:
                    found = inspect.getattr_static(owner, node.attr, None)
                    yield from self._of(found, not isinstance(owner, ModuleType))
            elif isinstance(node, ast.Name) and node.id not in self._own:
                value = self._value(node.id)
                yield from self._of(value, False)
                if _may_change(value) and not isinstance(value, (type, ModuleType)):
                    for name in _CALLED:
                        yield from self._of(inspect.getattr_static(value, name, None), True)

    def _found(self, node: Any) -> Any:
        """The object that an expression of names and attributes is, if it is from outside."""
        if isinstance(node, ast.Name):
            return None if node.id in self._own else self._value(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._found(node.value)
            return None if owner is None else inspect.getattr_static(owner, node.attr, None)
        return None

    def _of(self, value: Any, is_outside: bool) -> Iterator[_Function]:
        if isinstance(value, (MethodType, classmethod, staticmethod)):
            value, is_outside = value.__func__, not isinstance(value, staticmethod)
        if isinstance(value, FunctionType) and not is_of_library(value):
            yield _Function(value, self._module, is_outside)


@cache  # as the state of a conv may be another one in every forward
def _source_of(code: CodeType) -> tuple[list[ast.AST], frozenset[str]]:
    """The nodes of a function's source; without a source its names, and kinds of writes."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                node.decorator_list = []  # which ran when the class was made
        return [*ast.walk(tree)], frozenset()
    except (OSError, SyntaxError):  # of code that was given to exec, or a lambda in a table
        unread = frozenset((*code.co_names, *code.co_freevars, *_stores(code)))
        return [ast.Name(name) for name in unread], unread


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # of a name that is set later
        return None


def _stores(code: CodeType) -> Iterator[str]:
    return (each.opname for each in dis.get_instructions(code) if each.opname in _STORES)


def _changes(name: str) -> bool:
    """Whether a method of this name changes its object."""
    is_method = not name.startswith('__') and is_in_place(name)
    return name in _CHANGES or name in _STORES or is_method


def _may_change(value: Any) -> bool:
    """Whether an object is no number and no function, and no class or object of a library."""
    if isinstance(value, (type, ModuleType)):
        return not is_of_library(value)
    if isinstance(value, (list, dict, set, bytearray)):
        return True
    if isinstance(value, (*PLAIN, torch.dtype, torch.device, tuple, frozenset)):
        return False
    if isinstance(value, (FunctionType, MethodType, property, classmethod, staticmethod)):
        return False
    return isinstance(value, torch.Tensor) or not (callable(value) and is_of_library(type(value)))
