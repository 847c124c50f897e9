"""META.json as text: written with a checksum of its own, and read as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pyg_sar.shard.format import META_FILE


def read_notes(root: str | Path) -> dict[str, Any]:
    """What META.json holds for people: how the partition came about, command and versions."""
    ours = read_content(root)['pyg_sar']
    return {name: ours.get(name) for name in ('partition', 'command', 'versions')}


def read_checksums(root: str | Path) -> dict[str, str]:
    """SHA-256 of every other file, by its path in the folder."""
    return dict(read_content(root)['pyg_sar'].get('checksums', {}))


def meta_is_unchanged(root: str | Path) -> bool:
    """Whether META.json has the checksum of its own that was written into it."""
    content = read_content(root)
    return bool(content['pyg_sar'].get('checksum') == _checksum(content))


def read_content(root: str | Path) -> dict[str, Any]:
    """All that META.json holds, unchecked."""
    content: dict[str, Any] = json.loads((Path(root) / META_FILE).read_text(encoding='utf-8'))
    return content


def as_text(content: dict[str, Any]) -> str:
    """The text of META.json, with a checksum of all else in it."""
    content['pyg_sar']['checksum'] = _checksum(content)
    return json.dumps(content, indent=1, sort_keys=True) + '\n'


def _checksum(content: dict[str, Any]) -> str:
    ours = {name: value for name, value in content['pyg_sar'].items() if name != 'checksum'}
    text = json.dumps({**content, 'pyg_sar': ours}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
