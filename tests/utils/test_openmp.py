"""Threads of torch do not spin for long, where pyg_sar can still ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from few import few


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
