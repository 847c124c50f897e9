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
from small_graphs import cut, small_graph

SLACK = 3.0  # seconds, on a busy machine
_TRY = 'ip link add br0 type bridge && ip link add v0 type veth peer name v1'


def _may_build_networks() -> str:
    """Why not; empty if this machine permits it."""
    try:
        subprocess.run(
            ['unshare', '-Urn', 'sh', '-c', _TRY], check=True, capture_output=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f'no network namespaces with veth here ({error})'
    return ''


def _outcomes(folder: Path) -> list[dict[str, Any]]:
    cut(small_graph(), 3, folder / 'parts')
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *sys.path])
    done = subprocess.run(
        ['unshare', '-Urn', sys.executable, cut_network.__file__, folder],
        env={**os.environ, 'PYTHONPATH': path},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.bench
def test_a_rank_is_cut_off(tmp_path: Path) -> None:
    reason = _may_build_networks()
    if reason:
        pytest.skip(reason)
    outcomes = _outcomes(tmp_path)
    for (how, _, faulty), found in zip(cut_network.CASES, outcomes, strict=True):
        assert all(code == 1 for code in found['codes']), found
        for rank, end in enumerate(found['ends']):
            assert end['type'] == 'ExchangeError', found
            limit = cut_network.TIMEOUT + SLACK if how == 'silently' else 5
            assert end['seconds'] < limit, found
            if rank != faulty:
                words = 'was silent for too long' if how == 'silently' else 'has ended or is cut'
                assert end['peer'] == faulty, found
                assert f'rank {faulty} {words}' in end['text'], found
