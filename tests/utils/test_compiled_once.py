"""Loops are compiled once on a machine, and importing PyG leaves the collector as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOOPS = """
from pyg_sar.utils.installed import loops
print(sum(loops().read_rows.stats.cache_misses.values()))
"""
TOLD = 'pyg_sar: compiling loops, once on this machine ...\n'


def _started(code: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, '-c', code],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_one_of_two_processes_compiles_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip('numba')
    cold = [_started(LOOPS, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    found = [process.communicate(timeout=300) for process in cold]
    assert sorted(out for out, _ in found) == ['0\n', '1\n']
    assert ''.join(err for _, err in found).count(TOLD) == 1
    warm = _started(LOOPS, NUMBA_CACHE_DIR=str(tmp_path)).communicate(timeout=300)
    assert warm == ('0\n', '')


@pytest.mark.parametrize('call', ['enable', 'disable'])
def test_the_collector_stays_as_it_was(call: str) -> None:
    code = f'import gc; gc.{call}(); import pyg_sar, sys; '
    code += "print(gc.isenabled(), 'torch_geometric' in sys.modules)"
    out, err = _started(code).communicate(timeout=300)
    assert out == f'{call == "enable"} True\n', err
