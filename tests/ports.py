"""Ports for programs that are given one."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path('/proc/sys/net/ipv4/ip_local_port_range')


def free_port() -> int:
    """A free port that nobody gets who did not ask for it.

    The kernel gives out ports from 32768 on to sockets without one, such as gloo's: one of those
    may be taken again before the program that is given it listens.
    """
    end = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32768
    while True:
        port = random.SystemRandom().randrange(10_000, end)
        with socket.socket() as server:
            try:
                server.bind(('', port))
            except OSError:
                continue
            return port
