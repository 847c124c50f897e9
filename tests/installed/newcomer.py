"""Does what a new user does: ``python tests/installed/newcomer.py``, with any Python.

In a new environment, outside of the checkout and without a lock, it runs the lines of the README's
section "Install" as they stand, on a copy of the checkout. Then it tries what was installed
(try_out.py) and says which versions pip chose. Those are what users get today.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def install_lines() -> list[str]:
    """The commands of the README's section "Install"."""
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    section = readme.split('\n## Install\n')[1].split('\n## ')[0]
    block = re.findall(r'```bash\n(.*?)```', section, re.DOTALL)
    return [line for commands in block for line in commands.splitlines() if line]


def copied(target: Path) -> Path:
    """A copy of the checkout: what git knows and what it would add, as it is now."""
    listing = ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split('\0')):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def main() -> None:
    with tempfile.TemporaryDirectory(prefix='newcomer-') as name:
        folder = Path(name)
        clone = copied(folder / 'pyg_sar')
        env_dir = folder / 'env'
        subprocess.run([sys.executable, '-m', 'venv', env_dir], check=True)
        env = {k: v for k, v in os.environ.items() if k not in ('PYTHONPATH', 'PYTHONHOME')}
        env |= {'VIRTUAL_ENV': str(env_dir), 'PATH': f'{env_dir}/bin{os.pathsep}{env["PATH"]}'}
        env['PIP_QUIET'] = '1'
        for line in install_lines():
            print(f'$ {line}', flush=True)
            subprocess.run(['bash', '-c', line], cwd=clone, env=env, check=True)
        python = env_dir / 'bin' / 'python'
        # The checkout is read for the README alone; where it starts is no folder with a pyg_sar.
        trial = [python, clone / 'tests' / 'installed' / 'try_out.py']
        subprocess.run(trial, cwd=folder / 'env', env=env, check=True)
        subprocess.run([python, '-m', 'pyg_sar', 'info'], cwd=folder / 'env', env=env, check=True)


if __name__ == '__main__':
    main()
