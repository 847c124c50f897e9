"""Runs the cases of ranks that are cut off, where the machine permits it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cut_network
from small_graphs import cut, small_graph

_TRY = 'ip link add br0 type bridge && ip link add v0 type veth peer name v1'


def why_no_networks() -> str:
    """Why this machine does not permit them; empty if it does."""
    try:
        subprocess.run(
            ['unshare', '-Urn', 'sh', '-c', _TRY], check=True, capture_output=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f'no network namespaces with veth here ({error})'
    return ''


def network_outcomes(folder: Path) -> list[dict[str, Any]]:
    """How all ranks end in every case."""
    folder.mkdir(exist_ok=True)
    cut(small_graph(), 3, folder / 'parts')
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    done = subprocess.run(
        ['unshare', '-Urn', sys.executable, cut_network.__file__, folder],
        env={**os.environ, 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found
