"""Which rule a function of torch has on rows, and what to write in place of one that is refused.

A function without a rule is refused by its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

Rule = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""``rule(func, args, kwargs)`` computes what `func` is of the whole graph."""

_by_name: dict[str, Rule] = {}
rules_by_function: dict[Any, Rule] = {}


instead_of: dict[str, str] = {}
"""What to write where a function is refused, by its name without underscores around it."""


def rule(names: str, instead: str = '') -> Callable[[Rule], Rule]:
    """Enters a rule for functions of torch by their names, without underscores around them.

    ``add`` stands for ``torch.add``, ``Tensor.add_``, ``+``, ``+=`` and their reversed forms;
    ``.shape`` for an attribute that is read. `instead` is what to write where it refuses.
    """
    hint(names, instead)

    def enter(function: Rule) -> Rule:
        for name in names.split():
            assert name not in _by_name, f'two rules for {name}'
            _by_name[name] = function
        return function

    return enter


def hint(names: str, instead: str) -> None:
    """Enters what to write in place of functions."""
    if instead:
        instead_of.update({name.strip('_'): instead for name in names.split()})


def rule_of(func: Any) -> Rule:
    """The rule of a function of torch; the one that refuses if there is none."""
    if torch._C._are_functorch_transforms_active():
        return _by_name['transformed']
    if func not in rules_by_function:
        rules_by_function[func] = _find(func)
    return rules_by_function[func]


def names(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


@cache
def name_of(func: Any) -> str:
    """The name of a function, or of an attribute, in messages and rules."""
    name = getattr(func, '__name__', str(func))
    if name in ('__get__', '__set__', '__delete__'):
        attribute = func.__self__
        name = getattr(attribute, 'fget', attribute).__name__
    # torch.mm == torch.dsmm == torch.spmm: whichever is asked first gives all of them its name.
    return 'mm' if name in ('dsmm', 'spmm') else str(name)


signature_of = cache(inspect.signature)


_NO_OPERATORS = ('__invert__', '__index__', '__int__', '__iter__')


@cache
def is_in_place(name: str) -> bool:
    """Whether a function of this name writes into its first argument."""
    if name.startswith('__'):
        return name == '__setitem__' or (name.startswith('__i') and name not in _NO_OPERATORS)
    return name.endswith('_') and name != 'requires_grad_'


@cache
def bare_name(func: Any) -> str:
    """Its name without the underscores of methods in place and of operators, or torch.special."""
    return name_of(func).strip('_').removeprefix('special_')


def _find(func: Any) -> Rule:
    name, kind = name_of(func), getattr(func, '__name__', '')
    if kind == '__get__':
        return _by_name.get(f'.{name}', _by_name['attribute_read'])
    if kind in ('__set__', '__delete__'):
        return _by_name['attribute_set']
    if getattr(func, '__module__', '') == 'torch.nn.init' and name != 'constant_':
        return _by_name['unknown']
    for form in _forms(name):
        if form in _by_name:
            return _by_name[form]
    return _by_name['pointwise' if is_pointwise(name) else 'unknown']


def _forms(name: str) -> list[str]:
    """A name as it is, without underscores, and without ``special_``, or an operator's r or i."""
    forms = [name, name.strip('_')]
    if name.startswith('special_'):
        forms.append(name.removeprefix('special_'))
    if name.startswith('__') and name.endswith('__') and forms[1][:1] in ('r', 'i'):
        forms.append(forms[1][1:])
    return forms


@cache
def is_pointwise(name: str) -> bool:
    """Whether torch itself says that a function of this name works number by number."""
    for form in _forms(name)[1:]:
        packet = getattr(torch.ops.aten, form, None)
        if packet is not None and form != 'equal':
            tags = (getattr(packet, overload).tags for overload in packet.overloads())
            if any(torch.Tag.pointwise in of_overload for of_overload in tags):
                return True
    return False


ALL_ROWS = (
    'pyg_sar.gather(x) has all rows in the order of the whole graph, pyg_sar.local(x) is the plain '
    'tensor of the own rows'
)

BROADCAST = (
    'in two dimensions would pair every row with every row',
    'write x.view(-1) for the column of an [N, 1], or y[None, :] for all pairs',
)
"""Why rows do not broadcast against rows, and what to write."""
