"""Values that hold for one thread while a ``with`` lasts.

What is found out far above and needed far below (the comm of a thread, the layer it runs, the forms
of functions in force) is kept here, in the one thread local of the package.
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
        """While it lasts, `value` holds in this thread."""
        before, self.value = self.value, value
        try:
            yield
        finally:
            self.value = before
