"""The site builds without a warning, and a browser opens all of its pages without a fault."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from pages import ROOT

PYTHON = ROOT / '.venv-docs' / 'bin' / 'python'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-docs, which 'make docs' installs"),
]


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('site')
    _run(
        '-m',
        'sphinx',
        '-W',
        '--keep-going',
        '-q',
        '-c',
        'docs',
        '-d',
        out / 'trees',
        '.',
        out / 'html',
    )
    return out / 'html'


def _run(*words: object) -> str:
    command = [str(PYTHON), *map(str, words)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_site_has_the_pages(site: Path) -> None:
    for page in (ROOT / 'docs').rglob('*.md'):
        assert (site / page.relative_to(ROOT)).with_suffix('.html').exists()
    start = (site / 'docs' / 'index.html').read_text(encoding='utf-8')
    assert 'full batch' in start
    assert 'docs/index.html' in (site / 'index.html').read_text(encoding='utf-8')


@pytest.mark.skipif(shutil.which('chromium') is None, reason='no chromium (apt install chromium)')
def test_a_browser_opens_every_page(site: Path, tmp_path: Path) -> None:
    said = _run(ROOT / 'tests' / 'docs' / 'browser.py', site, tmp_path)
    assert int(said.split()[0]) > 50
    assert len(list(tmp_path.glob('*-390.png'))) > 30
