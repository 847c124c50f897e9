"""Values that hold for one thread while a ``with`` lasts.

A caller sets what functions far below it need (the comm of a thread, the layer it runs, the forms
of functions in force) here, in the one thread local of the package.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

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
