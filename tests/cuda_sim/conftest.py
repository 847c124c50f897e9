"""Tests of the simulated device run where it is: ``make test-cuda-sim``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in ('tests/gpu', 'benchmarks'):
    sys.path.append(str(Path(__file__).parents[2] / folder))

simulation = sys.modules.get('simulated_cuda')
collect_ignore_glob = ['test_*'] if simulation is None else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cuda_sim)
            ignored = 'ignore:The usage of `scatter'  # PyG tells of a missing package
            item.add_marker(pytest.mark.filterwarnings(ignored))
            if simulation is not None and simulation.why_not:
                why = f'no simulated device: {simulation.why_not}'
                item.add_marker(pytest.mark.skip(reason=why))
