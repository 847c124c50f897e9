"""What is freed stays with the process while there is room, and goes when there is none."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from few import few

PROGRAM = """
import json, sys
import pyg_sar
import torch
from pyg_sar.launch.in_turns.freed_memory import FreedMemory
from pyg_sar.launch.process_memory import resident_of_no_file

def tensors():
    return [torch.ones(250_000) for _ in range(64)]  # a megabyte each

freed = FreedMemory(int(sys.argv[1]), 64 << 10)
many = tensors()
before = resident_of_no_file()
del many
freed.check()
after_check = resident_of_no_file()
many = tensors()
again = resident_of_no_file()
del many
freed.check()
print(json.dumps([before - after_check, again - after_check, again - resident_of_no_file()]))
"""


def _measured(budget: int) -> list[int]:
    """Bytes that a check gives back, that tensors take, and that the next check gives back."""
    command = [sys.executable, '-c', PROGRAM, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    bytes_: list[int] = json.loads(done.stdout)
    return bytes_


@pytest.mark.skipif(sys.platform != 'linux', reason='glibc')
@pytest.mark.parametrize(('budget', 'is_kept'), few([(64 << 20, False), (1 << 30, True)]))
def test_kept_while_there_is_room(budget: int, is_kept: bool) -> None:
    """The sizes are those of 64 tensors of 1 MB, on pages of any size."""
    for bytes_ in _measured(budget):
        assert (abs(bytes_) < 8e6) if is_kept else (bytes_ > 50e6)
