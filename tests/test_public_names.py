"""Public names have the signatures of public_names.txt: what changes is a line of CHANGELOG."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pyg_sar
import pyg_sar.loader
import pyg_sar.partition

FILE = Path(__file__).parent / 'public_names.txt'


def signatures() -> list[str]:
    """A line for every public name and for every public method of a class."""
    lines = []
    modules = (pyg_sar, pyg_sar.partition, pyg_sar.loader)
    for module in modules:
        for name in sorted(getattr(module, '__all__', None) or vars(module)):
            value = getattr(module, name)
            is_own = getattr(value, '__module__', '').startswith('pyg_sar.')
            if name.startswith('_') or not callable(value) or not is_own:
                continue
            lines.append(f'{module.__name__}.{name}{inspect.signature(value)}')
            for method, function in sorted(vars(value).items() if isinstance(value, type) else ()):
                if not method.startswith('_') and inspect.isfunction(function):
                    lines.append(f'{module.__name__}.{name}.{method}{inspect.signature(function)}')
    return [re.sub(' at 0x[0-9a-f]+', '', line) for line in lines]


def test_public_names_are_those_that_were_promised() -> None:
    assert signatures() == FILE.read_text(encoding='utf-8').splitlines()


if __name__ == '__main__':
    FILE.write_text('\n'.join(signatures()) + '\n', encoding='utf-8')
