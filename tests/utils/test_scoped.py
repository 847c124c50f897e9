"""A value holds for one thread while a ``with`` lasts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pyg_sar.utils.scoped import Scoped


def test_the_innermost_holds_and_an_error_ends_it() -> None:
    layer, phase = Scoped(''), Scoped('')
    with layer.set('a'):
        with layer.set('b'):
            assert (layer.value, phase.value) == ('b', '')
        with pytest.raises(KeyError), layer.set('c'):
            raise KeyError
        assert layer.value == 'a'
    assert layer.value == ''


def test_another_thread_is_outside() -> None:
    layer = Scoped('outside')
    with layer.set('inside'), ThreadPoolExecutor() as pool:
        assert pool.submit(lambda: layer.value).result() == 'outside'
