"""The tests of a device take cases and programs from those of the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from launch.in_turns.conftest import folder  # noqa: F401 (a fixture)

for room in ('nn', 'loader'):
    sys.path.append(str(Path(__file__).parents[1] / room))
sys.path.append(str(Path(__file__).parents[2] / 'benchmarks'))

collect_ignore_glob = [] if torch.cuda.is_available() else ['test_*']

IGNORED = ('ignore:The usage of `scatter', 'ignore:Attempting to run cuBLAS')
"""PyG tells of a missing package, and torch of a context that its own thread has made late."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            for text in IGNORED:
                item.add_marker(pytest.mark.filterwarnings(text))
