"""Runs the examples as their users run them, or imports them."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

from started import ROOT, output

EXAMPLES = ROOT / 'examples'


def torchrun(num_ranks: int) -> list[object]:
    """How a program is started on ranks of this machine."""
    return ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', num_ranks]


def run(*command: object, folder: Path | None = None) -> str:
    """The output of a program that must end well."""
    return output(['python', *command], folder=folder)


@cache
def example(name: str) -> Any:
    """The module of an example."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f'{name}.py')
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # PyG looks for the module of a conv
    spec.loader.exec_module(module)
    return module
