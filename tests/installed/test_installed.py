"""What is installed: the wheel and the sdist by themselves, commands, and what is told of parts."""

from __future__ import annotations

import re
import sysconfig
from functools import partial
from pathlib import Path

import pytest
from newcomer import copied, install_lines
from started import ROOT, output, run

import pyg_sar
from pyg_sar import __version__
from pyg_sar.__main__ import main
from pyg_sar.launch import info


def test_what_is_installed(capsys, monkeypatch):
    there = info.find_spec
    monkeypatch.setattr(info, 'find_spec', lambda name: name != 'ogb' and there(name))
    assert main(['info']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'pyg_sar {__version__}'
    assert any(line.startswith('backends  gloo') for line in lines)
    assert ['ogb', 'not', 'installed'] in [line.split()[:3] for line in lines]
    assert "install an extra with pip install 'pyg_sar[EXTRA]'" in lines


def _told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit code, and all that a command prints where it ends by itself."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code, ''.join(capsys.readouterr())


def test_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert _told(['--version'], capsys) == (0, f'pyg_sar {__version__}\n')
    code, told = _told([], capsys)
    assert code == 0
    assert told.startswith('usage: pyg-sar [-h]')
    for name in ('partition', 'run', 'info'):
        assert f'\n    {name}' in told
        code, of_command = _told([name, '--help'], capsys)
        assert code == 0
        assert of_command.startswith(f'usage: pyg-sar {name} [-h]')
    assert '--nproc-per-node' in _told(['run', '--help'], capsys)[1]
    assert callable(pyg_sar.run_in_turns)


@pytest.mark.slow
def test_the_form_that_was_typed() -> None:
    """As a module; neither PyG nor Python warns."""
    for words in (['pyg_sar'], ['pyg_sar', 'info'], ['pyg_sar.partition']):
        done = run(['python', '-m', *words, '--help'])
        assert (done.returncode, done.stderr) == (0, '')
        assert done.stdout.startswith(f'usage: python -m {" ".join(words)} [-h]')


def test_the_extras_that_are_told_are_those_that_there_are() -> None:
    text = (ROOT / 'pyproject.toml').read_text()
    section = text.split('[project.optional-dependencies]\n')[1].split('\n[')[0]
    extras = [line.split(' = ')[0] for line in section.splitlines() if ' = ' in line]
    assert [*info._EXTRAS] == [name for name in extras if name not in ('all', 'test', 'dev')]


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


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['wheel', pytest.param('sdist', marks=pytest.mark.bench)])
def test_in_an_environment_of_its_own(tmp_path: Path, kind: str) -> None:
    """On top of the packages of this one, but for pyg_sar."""
    alone = partial(output, PYTHONPATH=None)
    source = copied(tmp_path / 'source')
    if kind == 'sdist':
        build = f"import setuptools.build_meta as b; b.build_sdist('{tmp_path}')"
        alone(['python', '-c', build], folder=source)
        (source,) = tmp_path.glob('*.tar.gz')
    pip = ['python', '-m', 'pip']
    quiet = ['--quiet', '--no-deps', '--no-build-isolation', '--disable-pip-version-check']
    alone([*pip, 'wheel', *quiet, '--wheel-dir', tmp_path, source])
    (wheel,) = tmp_path.glob('*.whl')

    alone(['python', '-m', 'venv', '--without-pip', tmp_path / 'env'])
    python = tmp_path / 'env' / 'bin' / 'python'
    alone([*pip, '--python', python, 'install', *quiet, '--no-index', wheel])
    command = [python, '-c', "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = alone(command).strip()
    here = sysconfig.get_path('purelib')
    (Path(site) / 'others.pth').write_text(f"import site; site.addsitedir('{here}')\n")
    trial = [python, ROOT / 'tests' / 'installed' / 'try_out.py']
    assert 'all ran' in alone(trial)
