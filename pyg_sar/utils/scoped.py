"""Values that hold for one thread while a ``with`` lasts.

A caller sets what functions far below it need (the comm of a thread, the layer it runs, the forms
of functions in force) here, in the one thread local of the package.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch

T = TypeVar('T')


class Scoped(threading.local, Generic[T]):
    """A value of the thread that asks: `outside`, or what the innermost ``with`` has set.

    Example::

        layer = Scoped('')
        with layer.set('layer conv1'):
            layer.value  # 'layer conv1', in this thread alone
    """

    def __init__(self, outside: T) -> None:  # which every thread calls once
        self.value = outside

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """In its ``with``, `value` holds in this thread."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before


def on_cpu() -> AbstractContextManager[Any]:
    """In its ``with``, new tensors are on the CPU, whatever ``torch.set_default_device`` has set.

    Where the CPU is the default, nothing is set: torch's context looks at every operation.
    """
    return nullcontext() if torch.get_default_device().type == 'cpu' else torch.device('cpu')
