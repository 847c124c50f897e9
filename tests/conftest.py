"""Fixtures of all tests; tests that the run leaves out are not even made."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import hypothesis
import pytest
import torch
from ranks import seed

from pyg_sar.comm.threads import forgets_generated

hypothesis.settings.register_profile('pyg_sar', deadline=None, derandomize=True, max_examples=15)
hypothesis.settings.load_profile('pyg_sar')


@pytest.fixture(autouse=True)
def _deterministic() -> Iterator[None]:
    seed()
    torch.set_num_threads(1)
    with forgets_generated():
        yield


@functools.cache
def _left_out(expression: str) -> frozenset[str]:
    """Marks whose tests do not run: slow of ``-m 'not slow'``, and gpu without a CUDA device."""
    named = re.findall(r'\bnot (\w+)', expression) if ' or ' not in expression else []
    return frozenset([*named, *(() if torch.cuda.is_available() else ['gpu'])])


def _is_left_out(config: pytest.Config, marks: Iterable[Any]) -> bool:
    return any(mark.name in _left_out(config.option.markexpr) for mark in marks)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """No test of a function that is marked so, itself or by its module."""
    if not name.startswith('test'):
        return None
    marks = [*getattr(obj, 'pytestmark', []), *collector.iter_markers()]
    return [] if _is_left_out(collector.config, marks) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """No test of a case that is marked so, such as those of ``few``."""
    parametrize = metafunc.parametrize

    def of_the_others(names: Any, values: Iterable[Any], *args: Any, **options: Any) -> None:
        values, ids = [*values], options.get('ids')
        kept = [i for i, v in enumerate(values) if not _is_left_out(metafunc.config, _marks(v))]
        if isinstance(ids, (list, tuple)):
            options['ids'] = [ids[i] for i in kept]
        parametrize(names, [values[i] for i in kept], *args, **options)

    metafunc.parametrize = of_the_others  # type: ignore[method-assign]


def _marks(value: Any) -> Any:
    return value.marks if isinstance(value, type(pytest.param())) else ()
