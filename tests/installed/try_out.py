"""Tries an installed pyg_sar as a new user does: ``python tests/installed/try_out.py``.

For the Python of an environment into which the wheel alone was installed: its files, its commands,
the README's ten lines on two processes, and what is said where an optional package is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(sysconfig.get_path('scripts'))
FAKE = 'torch_geometric.datasets.FakeDataset(num_graphs=1)'

TRIALS = [
    ('pyg-sar info', ['\npyg_sar ', 'gloo']),
    ('pyg-sar partition data.pt parts --num-parts 4', ['80 nodes']),
    ('pyg-sar info parts --verify', ['verified: every file']),
    (f'python -m pyg_sar.partition {FAKE} fake --num-parts 2', []),
]
"""Commands, and words of what they print."""

MISSING = {
    'kaminpar': ('kaminpar', 'partition data.pt out --num-parts 2 --method kaminpar'),
    'plot': ('matplotlib', 'info parts --plot parts.png'),
    'fast': ('pyarrow', 'partition edges.csv out --num-parts 2'),
}
"""Of extras a package, and what needs it; ogb needs a dataset on the disk beside it."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_graph(folder)
        for line, words in TRIALS:
            told = _run(folder, *line.split())
            assert all(word in f'\n{told}' for word in words), told
        _ten_lines(folder)
        (folder / 'edges.csv').write_text('src,dst\n0,1\n1,0\n')
        missing = {extra: how for extra, how in MISSING.items() if find_spec(how[0]) is None}
        for extra, (_, words) in missing.items():
            told = _run(folder, 'pyg-sar', *words.split(), fails=True)
            assert f'pyg_sar[{extra}]' in told, told
    print(f'{sys.version.split()[0]}: all ran; told without {", ".join(missing) or "nothing"}')


def _write_graph(folder: Path) -> None:
    import torch
    from torch_geometric.data import Data

    import pyg_sar

    assert ROOT not in Path(pyg_sar.__file__).parents, pyg_sar.__file__
    torch.manual_seed(0)
    y = torch.arange(80) % 4
    data = Data(
        x=torch.nn.functional.one_hot(y, 4) + 0.1 * torch.randn(80, 4),
        edge_index=torch.randint(80, (2, 400)),
        y=y,
        train_mask=torch.arange(80) % 3 > 0,
    )
    torch.save(data, folder / 'data.pt')


def _ten_lines(folder: Path) -> None:
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    found = re.search(r'<!-- readme-example -->\n```python\n(.*?)```', readme, re.DOTALL)
    assert found is not None
    (folder / 'train.py').write_text(found[1])
    _run(folder, *['pyg-sar', 'run', '--standalone', '--nproc-per-node', '2', 'train.py'])


def _run(folder: Path, command: str, *words: str, fails: bool = False) -> str:
    """What a command of this environment prints, or says where it must fail."""
    done = subprocess.run(
        [SCRIPTS / command, *words],
        cwd=folder,  # not where a checkout would be imported
        env={**os.environ, 'OMP_NUM_THREADS': '1'},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
    return done.stderr if fails else done.stdout


if __name__ == '__main__':
    main()
