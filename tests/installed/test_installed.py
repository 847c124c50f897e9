"""What is installed: the wheel and the sdist by themselves, commands, and what is told of parts."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from newcomer import copied, install_lines

import pyg_sar
from pyg_sar import __main__, __version__

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    there = __main__.find_spec
    monkeypatch.setattr(__main__, 'find_spec', lambda name: name != 'ogb' and there(name))
    assert __main__.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'pyg_sar {__version__}'
    assert any(line.startswith('backends  gloo') for line in lines)
    assert ['ogb', 'not', 'installed'] in [line.split()[:3] for line in lines]
    assert "install an extra with pip install 'pyg_sar[EXTRA]'" in lines


@pytest.mark.filterwarnings('ignore:.*found in sys.modules:RuntimeWarning')  # by other tests
def test_one_command_for_all_programs(capfd: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    told = capfd.readouterr().out
    assert [line.split()[1] for line in told.splitlines() if line.startswith('pyg-sar ')] == [
        *__main__._PROGRAMS,
        'PROGRAM',
    ]
    argv = [*sys.argv]
    for name in __main__._PROGRAMS:
        assert __main__.main([name, '--help']) == 0
        assert f'python -m pyg_sar.{name.replace("-", "_")}' in capfd.readouterr().out
        assert __main__.main([name, '--no-such']) == 2
        assert capfd.readouterr().err.startswith('error: ')
    assert __main__.main(['cut']) == 2
    assert "no program 'cut'" in capfd.readouterr().err
    assert sys.argv == argv
    assert callable(pyg_sar.run_in_turns)


def test_the_extras_that_are_told_are_those_that_there_are() -> None:
    text = (ROOT / 'pyproject.toml').read_text()
    section = text.split('[project.optional-dependencies]\n')[1].split('\n[')[0]
    extras = [line.split(' = ')[0] for line in section.splitlines() if ' = ' in line]
    assert [*__main__._EXTRAS] == [name for name in extras if name not in ('all', 'test', 'dev')]


def test_a_newcomer_runs_the_lines_of_the_readme() -> None:
    commands = [line.partition('#')[0].strip() for line in install_lines()]
    assert commands == ["pip install '.[fast]'", 'make demo']


def test_what_a_release_runs_cannot_move() -> None:
    """Actions by the hash of a commit, and the torch that the tests have."""
    files = [*(ROOT / '.github' / 'workflows').glob('*.yml')]
    uses = re.findall(r'uses: (.*)', ''.join(file.read_text() for file in files))
    assert len(uses) > 9
    assert [each for each in uses if not re.fullmatch(r'\S+@[0-9a-f]{40}  # v\S+', each)] == []
    assert (
        'install build torch -c requirements.lock' in (files[0].parent / 'release.yml').read_text()
    )


def test_the_version_is_the_same_everywhere() -> None:
    assert f'\nversion: {__version__}\n' in (ROOT / 'CITATION.cff').read_text()


def _run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['wheel', pytest.param('sdist', marks=pytest.mark.bench)])
def test_in_an_environment_of_its_own(tmp_path: Path, kind: str) -> None:
    """On top of the packages of this one, but for pyg_sar."""
    source = copied(tmp_path / 'source')
    if kind == 'sdist':
        build = f"import setuptools.build_meta as b; b.build_sdist('{tmp_path}')"
        subprocess.run([sys.executable, '-c', build], cwd=source, check=True, capture_output=True)
        (source,) = tmp_path.glob('*.tar.gz')
    pip = [sys.executable, '-m', 'pip']
    quiet = ['--quiet', '--no-deps', '--no-build-isolation', '--disable-pip-version-check']
    _run(*pip, 'wheel', *quiet, '--wheel-dir', tmp_path, source)
    (wheel,) = tmp_path.glob('*.whl')

    _run(sys.executable, '-m', 'venv', '--without-pip', tmp_path / 'env')
    python = tmp_path / 'env' / 'bin' / 'python'
    _run(*pip, '--python', python, 'install', *quiet, '--no-index', wheel)
    site = _run(python, '-c', "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    here = sysconfig.get_path('purelib')
    (Path(site) / 'others.pth').write_text(f"import site; site.addsitedir('{here}')\n")
    assert 'all ran' in _run('env', '-u', 'PYTHONPATH', python, 'tests/installed/try_out.py')
