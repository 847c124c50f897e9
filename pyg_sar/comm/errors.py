"""The error of a lost rank: the layer of the model, and the line of the program, that it names."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch_geometric

from pyg_sar.utils import hook
from pyg_sar.utils.scoped import Scoped

_LIBRARIES = Path(__file__).parent, Path(torch.__file__), Path(torch_geometric.__file__)
_OTHERS = (
    *(contextlib.__file__, threading.__file__, '<'),
    *(f'{path.absolute().parent}{os.sep}' for path in _LIBRARIES),
)


@cache
def _is_users(file: str) -> bool:
    return not file.startswith(_OTHERS) and os.sep in file


def users_line() -> tuple[str, int] | None:
    """The user's file and line that called; None in a thread that the program has not started."""
    lines = ((f.f_code.co_filename, line) for f, line in traceback.walk_stack(sys._getframe()))
    return next((line for line in lines if _is_users(line[0])), None)


def warn(text: str) -> None:
    """Warns, and names that line."""
    file, line = users_line() or (__file__, 0)
    warnings.warn_explicit(text, UserWarning, file, line)


Function = TypeVar('Function', bound=Callable[..., Any])
Error = TypeVar('Error', bound=Exception)


class ExchangeError(RuntimeError):
    """Another rank has ended, is silent, has failed or does something else.

    After it the ranks of this process group exchange nothing more: every later exchange raises.

    Attributes:
        rank: This rank.
        peer: The rank that was lost, or None if it is not known.
        operation: The operation of this rank: ``'receiving the rows of part 2'``.
        layer: The layer: ``"layer 'convs.1' (GATConv), backward"``; empty outside of layers.
        reason: Why the peer was lost, and what to do.
        line: The file and line of the program that called the operation, if known.
    """

    def __init__(
        self, rank: int, peer: int | None, operation: str, layer: str, reason: str
    ) -> None:
        super().__init__(rank, peer, operation, layer, reason)
        self.rank, self.peer, self.operation = rank, peer, operation
        self.layer, self.reason = layer, reason
        self.line = users_line()

    def __str__(self) -> str:
        where = f' in {self.layer}' if self.layer else ''
        line = f', called at {self.line[0]}:{self.line[1]}' if self.line else ''
        return f'{self.reason}; rank {self.rank} stopped at {self.operation}{where}{line}'


class PartedError(ValueError):
    """Ranks have had different values. All raise it at one operation: their exchanges go on."""


_OWN_RANK = '_pyg_sar_rank'


def with_root_cause(rank: int, own_rank: int, error: Error) -> Error:
    """An error that all ranks raise because of one of them: the others end in a line."""
    if rank != own_rank:
        vars(error)[_OWN_RANK] = own_rank
    return error


def end_in_a_line() -> None:
    """A program of this process that ends because of another rank says one line, no traceback.

    It ends half a second later than that rank, which a launcher then names first.
    """
    usual = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        rank = error.rank if isinstance(error, ExchangeError) else vars(error).get(_OWN_RANK)
        if rank is None:
            usual(kind, error, trace)
        else:
            # That rank may be about to print its traceback, or its end has been seen already.
            time.sleep(0.0 if isinstance(error, ExchangeError) else 0.2)
            # In one piece, as other ranks write to the same terminal.
            sys.stderr.write(f'[rank{rank}]: {kind.__name__}: {error}\n')
            sys.stderr.flush()
            time.sleep(0.5)

    sys.excepthook = say


layer_and_phase: Scoped[tuple[str, str]] = Scoped(('', ''))
"""The layer or function that a thread is in; of a layer the phase, forward or backward."""


def location() -> str:
    """The layer and phase, or the function, that this thread is in; empty outside of them."""
    return ', '.join(filter(None, layer_and_phase.value))


def at_location(operation: str) -> str:
    """An operation, with the layer and phase that it is done in."""
    where = ', '.join(filter(None, layer_and_phase.value))
    return f'{operation} in {where}' if where else operation


@contextmanager
def in_layer(layer: str, phase: str = 'forward') -> Iterator[None]:
    """Names the layer that is computed while it lasts; the innermost counts."""
    before, layer_and_phase.value = layer_and_phase.value, (layer, phase)
    try:
        if hook.watchers:
            with hook.in_layer(layer, phase):
                yield
        else:
            yield
    finally:
        layer_and_phase.value = before


def in_call(function: str) -> AbstractContextManager[None]:
    """Names a function of this library in the place of a layer."""
    return layer_and_phase.set((function, ''))


def collective(name: str, messages: str) -> Callable[[Function], Function]:
    """Decorates a function that all ranks call: its docstring says so, errors bear its name.

    torch.compile runs it as it is: what ranks tell each other it cannot trace.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with in_call(name):
                return function(*args, **kwargs)

        summary, _, rest = inspect.cleandoc(function.__doc__ or '').partition('\n\n')
        text = f'Collective: every rank calls it; {messages}.'
        call.__doc__ = '\n\n'.join(filter(None, (summary, text, rest)))
        return cast(Function, torch.compiler.disable(call))  # type: ignore[no-untyped-call]

    return decorate
