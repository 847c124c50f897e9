"""What importing pyg_sar sets, where it still can, what it leaves, and what it compiles once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from few import few
from ranks import context
from started import output, run

pytestmark = pytest.mark.skipif(not sys.platform.startswith('linux'), reason='torch for Linux')

CHOSEN = 'THP_MEM_ALLOC_ENABLE', 'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY'
CODE = """
import gc; gc.{gc}able()
import {first}
import pyg_sar, torch
print(gc.isenabled(), 'torch_geometric' in sys.modules, pyg_sar.utils.malloc.has_huge_pages())
pyg_sar.utils.malloc.return_freed_memory()
"""


def _imported(first: str, gc: str, **environ: str) -> tuple[str, str]:
    """What a new interpreter prints, and what it says; a warning is an error."""
    variables = {'PYG_SAR_LOG': 'info', 'OMP_DISPLAY_ENV': 'verbose', **environ}
    code = 'import sys' + CODE.format(first=first, gc=gc)
    done = run(['python', '-W', 'error', '-c', code], **{**dict.fromkeys(CHOSEN), **variables})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ('first', 'gc', 'environ', 'has_pages', 'spins'),
    few(
        [
            ('pyg_sar', 'dis', {}, True, '10000'),
            ('pyg_sar', 'en', {'GOMP_SPINCOUNT': '7'}, True, '7'),
            ('torch', 'en', {'OMP_WAIT_POLICY': 'active'}, True, '30000000000'),
            ('torch', 'en', {'THP_MEM_ALLOC_ENABLE': '0'}, False, ''),
        ],
        every=4,
    ),
)
def test_what_is_set_and_left(
    first: str, gc: str, environ: dict[str, str], has_pages: bool, spins: str
) -> None:
    """Huge pages and short spinning, where the user has not chosen; the collector as it was."""
    out, said = _imported(first, gc, **environ)
    assert out == f'{gc == "en"} True {has_pages}'
    assert ('import pyg_sar before torch_geometric' in said) == (not has_pages)
    if 'GCC' in torch.__config__.show():
        assert f"GOMP_SPINCOUNT = '{spins}" in said


@pytest.mark.slow
def test_huge_pages_come_too_late_after_pyg() -> None:
    code = 'import torch_geometric, pyg_sar; print(pyg_sar.utils.malloc.has_huge_pages())'
    assert output(['python', '-c', code], **dict.fromkeys(CHOSEN)) == 'False\n'


def _misses(folder: str, number: int) -> None:
    """Notes what is said, and how many loops were compiled here."""
    import numba

    assert 'pyg_sar.utils.numba_loops' not in sys.modules
    numba.config.CACHE_DIR = folder
    with open(f'{folder}/said-{number}', 'w') as said:
        os.dup2(said.fileno(), 2)
        from pyg_sar.utils.installed import loops

        found = sum(loops().read_rows.stats.cache_misses.values())
    Path(f'{folder}/misses-{number}').write_text(str(found))


def test_one_of_two_processes_compiles_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip('numba')
    for numbers in ((0, 1), (2,)):
        started = [context.Process(target=_misses, args=(str(tmp_path), n)) for n in numbers]
        for process in started:
            process.start()
        for process in started:
            process.join(300)
            assert process.exitcode == 0
    told = [(tmp_path / f'said-{n}').read_text() for n in range(3)]
    assert ''.join(told[:2]).count('pyg_sar: compiling loops, once on this machine ...\n') == 1
    assert told[2] == ''
    misses = [(tmp_path / f'misses-{n}').read_text() for n in range(3)]
    assert sorted(misses[:2]) == ['0', '1']
    assert misses[2] == '0'
