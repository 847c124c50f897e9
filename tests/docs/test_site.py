"""The site builds without a warning, and a browser opens all of its pages without a fault."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from started import ROOT, output

PYTHON = ROOT / '.venv-docs' / 'bin' / 'python'
_needs_sphinx = pytest.mark.skipif(
    not PYTHON.exists(), reason="no .venv-docs, which 'make docs' installs"
)
_needs_chromium = pytest.mark.skipif(
    shutil.which('chromium') is None, reason='no chromium (apt-get install chromium)'
)


def test_every_page_has_its_place() -> None:
    """In the list of docs/index.md, or of a page that is there."""
    named = set()
    for page in (ROOT / 'docs').rglob('*.md'):
        for entries in re.findall(r'```{toctree}\n(.*?)```', page.read_text(), re.DOTALL):
            lines = [line for line in entries.splitlines() if line and line[0] != ':']
            notebooks = {'../examples/tutorial'}
            names = [f'{line}.{"ipynb" if line in notebooks else "md"}' for line in lines]
            named |= {(page.parent / name).resolve() for name in names}
    pages = {*(ROOT / 'docs').rglob('*.md'), *(ROOT / 'benchmarks').glob('*/README.md')}
    pages.add(ROOT / 'examples' / 'tutorial.ipynb')
    assert pages - named == {ROOT / 'docs' / 'index.md'}
    assert [page for page in named if not page.exists()] == []


def test_the_pages_that_publish_are_those_that_are_built() -> None:
    makefile = (ROOT / 'Makefile').read_text()
    workflow = (ROOT / '.github' / 'workflows' / 'docs.yml').read_text()
    assert 'run: make docs' in workflow
    assert 'path: build/docs' in workflow
    assert '. build/docs\n' in makefile


@pytest.fixture(scope='module')
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp('site')
    command = [PYTHON, '-m', 'sphinx', '-W', '--keep-going', '-q', '-c', 'docs']
    output([*command, '-d', out / 'trees', '.', out / 'html'], folder=ROOT)
    return out / 'html'


@pytest.mark.slow
@_needs_sphinx
def test_the_site_has_the_pages(site: Path) -> None:
    for page in (ROOT / 'docs').rglob('*.md'):
        assert (site / page.relative_to(ROOT)).with_suffix('.html').exists()
    assert 'docs/index.html' in (site / 'index.html').read_text(encoding='utf-8')
    front = (site / 'docs' / 'index.html').read_text(encoding='utf-8')
    assert 'exactly' in front
    assert '<figcaption>' in front
    assert (site / '_modules' / 'pyg_sar' / 'rows' / 'load.html').exists()


@pytest.mark.slow
@_needs_sphinx
@_needs_chromium
def test_a_browser_opens_every_page(site: Path, tmp_path: Path) -> None:
    said = output([PYTHON, ROOT / 'tests' / 'docs' / 'browser.py', site, tmp_path])
    assert int(said.split()[0]) == len(list(site.rglob('*.html')))
    assert len(list(tmp_path.glob('*.png'))) > 80
