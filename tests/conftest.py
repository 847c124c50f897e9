"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.hookimpl(trylast=True)  # the folders have marked theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a CUDA device its tests, a fifth of all, are left out rather than skipped."""
    if torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker('gpu') is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker('gpu') is None]
