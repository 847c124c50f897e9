"""What importing pyg_sar sets, where it still can: huge pages, and threads that spin briefly."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from few import few

_PAGES = """
import {first}
import pyg_sar
print(pyg_sar.utils.malloc.has_huge_pages())
pyg_sar.utils.malloc.return_freed_memory()
"""


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='huge pages of Linux')
@pytest.mark.parametrize(
    ('first', 'asked', 'has'),
    [
        ('pyg_sar', None, True),
        pytest.param('torch_geometric', None, False, marks=pytest.mark.slow),
        pytest.param('torch', None, True, marks=pytest.mark.slow),
        pytest.param('torch', '0', False, marks=pytest.mark.slow),
    ],
)
def test_huge_pages(first: str, asked: str | None, has: bool) -> None:
    """Asked for at import, if that is before the first tensor and the user has not chosen."""
    env = {k: v for k, v in os.environ.items() if k != 'THP_MEM_ALLOC_ENABLE'}
    env |= {'PYG_SAR_LOG': 'info'} | ({} if asked is None else {'THP_MEM_ALLOC_ENABLE': asked})
    found = subprocess.run(
        [sys.executable, '-c', _PAGES.format(first=first)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(has)
    assert ('import pyg_sar before torch_geometric' in found.stderr) == (not has)


@pytest.mark.skipif('GCC' not in torch.__config__.show(), reason='the OpenMP of GCC')
@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='torch for Linux')
@pytest.mark.parametrize(
    ('chosen', 'spins'),
    few(
        [
            ({}, '10000'),
            ({'GOMP_SPINCOUNT': '7'}, '7'),
            ({'OMP_WAIT_POLICY': 'active'}, '30000000000'),
        ]
    ),
)
def test_torch_reads_how_long_to_spin(chosen: dict[str, str], spins: str) -> None:
    """Asked for at import, if the user has not chosen."""
    names = 'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY'
    env = {k: v for k, v in os.environ.items() if k not in names}
    env |= {'OMP_DISPLAY_ENV': 'verbose', **chosen}
    found = subprocess.run(
        [sys.executable, '-c', 'import pyg_sar, torch'],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in found.stderr
