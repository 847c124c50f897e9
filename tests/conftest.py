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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker('gpu') is not None:
            item.add_marker(pytest.mark.skip(reason='no CUDA device'))
