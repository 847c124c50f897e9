"""The notebook prints what it shows."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import ROOT, assert_same_output
from ranks import context

NOTEBOOK = ROOT / 'examples' / 'tutorial.ipynb'


def _cells() -> list[tuple[str, str]]:
    """The code of every cell, and what it has printed."""
    cells = json.loads(NOTEBOOK.read_text(encoding='utf-8'))['cells']
    return [
        (''.join(cell['source']), ''.join(line for out in cell['outputs'] for line in out['text']))
        for cell in cells
        if cell['cell_type'] == 'code'
    ]


def _run(folder: Path, printed: Path) -> None:
    """Runs the cells as a kernel does: their functions are of no module that could be imported."""
    os.chdir(folder)
    torch.set_num_threads(1)
    main: dict[str, Any] = vars(sys.modules['__main__'])
    texts = []
    for code, _ in _cells():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(code, 'cell', 'exec'), main)
        texts.append(out.getvalue())
    printed.write_text(json.dumps(texts))


@pytest.mark.slow
def test_notebook(tmp_path: Path) -> None:
    printed = tmp_path / 'printed.json'
    process = context.Process(target=_run, args=(tmp_path, printed))
    process.start()
    process.join(timeout=600)
    assert process.exitcode == 0
    for text, (_, shown) in zip(json.loads(printed.read_text()), _cells(), strict=True):
        assert_same_output(text, shown)
    for rank in range(4):
        assert 'outside of layers' in (tmp_path / f'profile-{rank}.txt').read_text()


def test_cells_compile() -> None:
    assert len(_cells()) >= 5
    for code, _ in _cells():
        compile(code, 'cell', 'exec')
