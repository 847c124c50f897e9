"""What is freed stays with the process while there is room, and goes when there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
import pyg_sar
import torch
from pyg_sar.in_turns.freed_memory import FreedMemory, _resident

def faults_of_eight():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        torch.ones(250_000)  # a megabyte
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

freed = FreedMemory(int(sys.argv[1]), 64 << 10)
many = [torch.ones(250_000) for _ in range(64)]
before = _resident()
del many
freed.check()
given_back = before - _resident()
print(json.dumps([given_back, faults_of_eight()]))
"""


def _measured(budget: int) -> tuple[int, int]:
    """Bytes given back of 64 MB that are freed, and page faults of eight tensors of 1 MB."""
    command = [sys.executable, '-c', PROGRAM, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    given_back, faults = json.loads(done.stdout)
    return given_back, faults


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc')
def test_kept_while_there_is_room() -> None:
    given_back, faults = _measured(1 << 30)
    assert given_back < 8e6
    assert faults < 250
    given_back, faults = _measured(64 << 20)
    assert given_back > 50e6
    assert faults > 1000
