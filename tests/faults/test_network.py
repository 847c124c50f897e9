"""A rank whose network is cut while it lives: a cable is pulled, or its connections are reset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cut_network
import pytest
from fault_program import TIMEOUT
from small_graphs import cut, small_graph

SLACK = 20.0  # seconds, on a busy machine
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


@pytest.mark.bench
def test_a_rank_is_cut_off(tmp_path: Path) -> None:
    reason = why_no_networks()
    if reason:
        pytest.skip(reason)
    outcomes = network_outcomes(tmp_path)
    for (how, _, faulty), found in zip(cut_network.CASES, outcomes, strict=True):
        assert all(code == 1 for code in found['codes']), found
        for rank, end in enumerate(found['ends']):
            assert end['type'] == 'ExchangeError', found
            limit = SLACK + (TIMEOUT if how == 'silently' else 0)
            assert end['seconds'] < limit, found
            if rank != faulty:
                words = 'was silent for too long' if how == 'silently' else 'has ended or is cut'
                # In a collective all lose each other, so it is not known which of them is cut off.
                assert end['peer'] in (faulty, None), found
                assert words in end['text'], found
