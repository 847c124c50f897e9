"""Fixtures of all tests."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from ranks import seed

hypothesis.settings.register_profile('pyg_sar', deadline=None, derandomize=True, max_examples=15)
hypothesis.settings.load_profile('pyg_sar')


@pytest.fixture(autouse=True)
def _deterministic() -> None:
    seed()
    torch.set_num_threads(1)


@pytest.hookimpl(trylast=True)  # the folders have marked theirs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a CUDA device its tests, a fifth of all, are left out rather than skipped."""
    if torch.cuda.is_available():
        return
    left_out = [item for item in items if item.get_closest_marker('gpu') is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker('gpu') is None]
