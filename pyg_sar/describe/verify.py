"""Whether the files of a partition folder are those that were written, by their checksums."""

from __future__ import annotations

from pathlib import Path

from pyg_sar.shard.files import file_checksum, folder_files, own_file
from pyg_sar.shard.format import META_FILE
from pyg_sar.shard.meta import Meta


def wrong_files(root: Path, meta: Meta) -> list[str]:
    """A sentence for each file of a partition folder that is changed, missing or foreign."""
    problems = []
    if not meta.is_unchanged:
        problems.append(f"'{root / META_FILE}' was changed after it was written")
    present = folder_files(root)
    problems += [f"'{root / name}' is missing" for name in sorted({*meta.checksums} - {*present})]
    for name in present:
        path = root / name
        if name not in meta.checksums:
            problems.append(f"'{path}' is not a file of this partition")
            continue
        try:
            if file_checksum(own_file(root, path)) != meta.checksums[name]:
                problems.append(f"'{path}' was changed after it was written")
        except (ValueError, OSError) as error:
            problems.append(str(error))
    return problems
