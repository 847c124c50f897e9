"""What code of a program's own reads in a conv, by its names.

How a call is computed is decided once for a state of the conv: its numbers, words, functions,
parameters and modules. Code of torch and PyG reads no more. A program's own message may read a
dict, a global or a tensor that changes in place. Such a conv is found here.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch_geometric.nn import MessagePassing

from pyg_sar.utils.class_swap import plain_class
from pyg_sar.utils.dry_run import LIBRARIES
from pyg_sar.utils.nested import PLAIN

_OF_MESSAGES = ('message', 'aggregate', 'update', 'edge_update')
METHODS = (*_OF_MESSAGES, 'forward')
"""What a conv may have of its own."""

TensorOf = tuple[torch.nn.Module, str]
"""A buffer or an attribute, by its module and name."""

_HOMES = (*LIBRARIES, 'math', 'typing', 'builtins')
_READ_ANYTHING = {'getattr', 'hasattr', 'vars', 'globals', 'locals', 'eval', 'exec', 'open'}
_ASK = {'is_grad_enabled', 'requires_grad', 'grad_fn', 'is_leaf', 'grad', '__dict__'}
_OF_GLOBALS = {'LOAD_GLOBAL', 'LOAD_NAME'}
_OF_OTHERS = {'STORE_GLOBAL', 'IMPORT_NAME', 'LOAD_DEREF', 'LOAD_CLASSDEREF', 'LOAD_CLOSURE'}
_OF_ATTRIBUTES = {'LOAD_ATTR', 'LOAD_METHOD', 'LOAD_SUPER_ATTR'}


def has_own_code(modules: Iterable[torch.nn.Module]) -> bool:
    """Whether classes or methods of modules are the program's own, or hooks of propagate."""
    for module in modules:
        values = plain_class(module), *(_method(module, name) for name in METHODS)
        if not all(is_of_library(value) for value in values if value is not None):
            return True
        table = vars(module)
        if any(table[name] for name in table if name.startswith('_propagate_forward')):
            return True
    return False


def what_it_reads(modules: Iterable[torch.nn.Module]) -> tuple[bool, tuple[TensorOf, ...]]:
    """Whether messages of a conv may read more than the state of its modules; which tensors.

    `modules` are all in the conv. The tensors are buffers and attributes, which may change in
    place, by module and name.
    """
    modules, tensors = [*modules], dict[TensorOf, None]()
    is_more = False
    for module in modules:
        for function in own_functions(module):
            is_more |= _reads_more(function, modules, tensors)
    return is_more or bool(tensors), tuple(tensors)


def own_functions(
    module: torch.nn.Module, of_messages: Sequence[str] = _OF_MESSAGES
) -> Iterator[Any]:
    """The functions of a module that are the program's own and run in messages, or their names."""
    names = of_messages if isinstance(module, MessagePassing) else ('forward',)
    for name in (*names, '__getattr__', '__getattribute__'):
        function = _method(module, name)
        if function is not None and not is_of_library(function):
            yield getattr(function, '__func__', function) if name in names else name
    for name, value in vars(module).items():
        is_called = callable(value) and not isinstance(value, (type, torch.nn.Module))
        if is_called and name not in METHODS and not is_of_library(value):
            yield value


def is_of_library(value: Any) -> bool:
    """Whether a class, function or module of Python is torch's, PyG's, this package's or fixed."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, '__module__', None)
    return (name or 'builtins').partition('.')[0] in _HOMES


def _method(module: torch.nn.Module, name: str) -> Any:
    return vars(module).get(name) or getattr(plain_class(module), name, None)


def _reads_more(
    function: Any, modules: Sequence[torch.nn.Module], tensors: dict[TensorOf, None]
) -> bool:
    if not isinstance(function, FunctionType) or _has_objects(function):
        return True
    seen, cells, todo = set[CodeType](), {'__class__'}, [(function.__code__, function.__globals__)]
    is_more = False
    while todo:
        code, table = todo.pop()
        if code in seen:
            continue
        seen.add(code)
        cells.update(code.co_cellvars)
        todo += [(const, table) for const in code.co_consts if isinstance(const, CodeType)]
        for instruction in dis.get_instructions(code):
            kind, read = instruction.opname, instruction.argval
            if kind in _OF_ATTRIBUTES:
                is_more |= read in _ASK
                for module in modules:
                    own = _own_methods(module, read)
                    todo += [(f.__code__, f.__globals__) for f in own]
                    if own:
                        is_more |= any(map(_has_objects, own))
                    elif isinstance(_attribute(module, read), torch.Tensor):
                        tensors[module, read] = None
                    else:
                        is_more |= not _is_state(module, read)
            is_more |= kind in _OF_GLOBALS and not _is_known(read, table)
            is_more |= kind in _OF_OTHERS and read not in cells
    return is_more


def _attribute(module: torch.nn.Module, name: str) -> Any:
    table, buffers = vars(module), module._buffers
    return buffers[name] if name in buffers else table.get(name)


def _has_objects(function: FunctionType) -> bool:
    """Whether defaults of its arguments are more than numbers and words."""
    defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
    return not all(isinstance(value, PLAIN) for value in defaults)


def _is_known(name: str, table: dict[str, Any]) -> bool:
    value = table.get(name, getattr(builtins, name, None))
    is_fixed = isinstance(value, (ModuleType, type)) or callable(value)
    return is_fixed and name not in _READ_ANYTHING and is_of_library(value)


def _own_methods(module: torch.nn.Module, name: str) -> list[FunctionType]:
    """The methods of that name that the program's own classes have."""
    if name in vars(module):
        return []
    found = (vars(cls).get(name) for cls in plain_class(module).__mro__)
    return [f for f in found if isinstance(f, FunctionType) and not is_of_library(f)]


def _is_state(module: torch.nn.Module, name: str) -> bool:
    """Whether an attribute is one of the state, or none that a program has made."""
    table = vars(module)
    if name in table:
        value = table[name]
        is_function = callable(value) and is_of_library(value)
        return isinstance(value, PLAIN) or is_function
    if any(name in table[names] for names in ('_buffers', '_parameters', '_modules')):
        return True
    owner = next((cls for cls in plain_class(module).__mro__ if name in vars(cls)), None)
    return owner is None or is_of_library(owner)
