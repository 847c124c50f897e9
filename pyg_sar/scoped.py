"""Values that hold for one thread while a ``with`` lasts.

What is found out far above and needed far below (the world a thread is in, the layer it runs, the
forms of functions in force) is kept here, in the one thread local of the package.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Generic, TypeVar

T = TypeVar('T')

_here = threading.local()
_ids = count()


class Scoped(Generic[T]):
    """A value of the thread that asks: `outside`, or what the innermost ``with`` has set.

    Example::

        layer = Scoped('')
        with layer.set('layer conv1'):
            layer.value  # 'layer conv1', in this thread alone
    """

    def __init__(self, outside: T) -> None:
        self._outside = outside
        self._name = f'value{next(_ids)}'

    @property
    def value(self) -> T:
        """What holds now."""
        found: T = getattr(_here, self._name, self._outside)
        return found

    @value.setter
    def value(self, value: T) -> None:
        setattr(_here, self._name, value)

    @contextmanager
    def set(self, value: T) -> Iterator[None]:
        """While it lasts, `value` holds in this thread."""
        before = self.value
        self.value = value
        try:
            yield
        finally:
            self.value = before
