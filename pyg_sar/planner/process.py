"""What a process holds before anything is loaded."""

from __future__ import annotations

from pathlib import Path

_BASE_BYTES = 330 << 20  # Python with torch and torch_geometric on Linux, CPU


def base_bytes() -> int:
    """Bytes this process holds now, just after its imports (Linux; elsewhere a typical value)."""
    status = Path('/proc/self/status')
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith('VmRSS:'):
                return int(line.split()[1]) * 1024
    return _BASE_BYTES
