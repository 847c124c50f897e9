"""META.json as text: written with a checksum of its own, and read as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pyg_sar.shard.format.file_names import META_FILE
from pyg_sar.shard.format.files import own_file

_MOST_BYTES = 1 << 28  # as much as some 4,000 parts need


def read_notes(root: str | Path) -> dict[str, Any]:
    """What META.json holds for people: how the partition came about, command and versions."""
    ours = read_content(root)['pyg_sar']
    return {name: ours.get(name) for name in ('partition', 'command', 'versions')}


def read_checksums(root: str | Path) -> tuple[bool, dict[str, str]]:
    """What META.json tells of what was written.

    Returns:
        Whether it has the checksum of its own that was written into it, and the SHA-256 of every
        other file, by its path in the folder.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If it is not one of ours.
    """
    content = read_content(root)
    checksums = content['pyg_sar'].get('checksums', {})
    if not isinstance(checksums, dict):
        raise ValueError(f"expected a dict 'checksums' in '{Path(root) / META_FILE}' (got others)")
    return content['pyg_sar'].get('checksum') == _checksum(content), checksums


def read_content(root: str | Path) -> dict[str, Any]:
    """All that META.json holds, unchecked but for a dict ``'pyg_sar'`` in it.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If it is not one of ours.
    """
    content = read_json(root)
    if not isinstance(content, dict) or not isinstance(content.get('pyg_sar'), dict):
        raise ValueError(
            f"expected the key 'pyg_sar' in '{Path(root) / META_FILE}' (got a folder of another "
            'program; partition the graph with `python -m pyg_sar.partition`)'
        )
    return content


def read_json(root: str | Path) -> Any:
    """All that META.json holds, of whatever program it is.

    Raises:
        FileNotFoundError: If the folder or its META.json is missing.
        ValueError: If it is no JSON, or no file of the folder.
    """
    root = Path(root)
    path = root / META_FILE
    if not root.is_dir():
        raise FileNotFoundError(f"expected a partition folder at '{root}' (got no folder)")
    try:
        own_file(root, path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"expected a complete partition folder at '{root}' (got one without {META_FILE}: "
            'it was not written by pyg_sar.partition, or only in part)'
        ) from error
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"expected less than {_MOST_BYTES} bytes in '{path}' (got more)")
    try:
        return json.loads(path.read_text(encoding='utf-8'))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in '{path}' (got {error})") from error


def as_text(content: dict[str, Any]) -> str:
    """The text of META.json, with a checksum of all else in it."""
    content['pyg_sar']['checksum'] = _checksum(content)
    return json.dumps(content, indent=1, sort_keys=True) + '\n'


def _checksum(content: dict[str, Any]) -> str:
    ours = {name: value for name, value in content['pyg_sar'].items() if name != 'checksum'}
    text = json.dumps({**content, 'pyg_sar': ours}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
