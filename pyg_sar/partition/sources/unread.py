"""Files beside those that are read: tables are an error that names them, others a note."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterator, Set
from pathlib import Path

from pyg_sar.partition.sources.edge_text import edge_texts
from pyg_sar.partition.sources.parts import table_files

_PROSE = re.compile(
    r'(read.?me|licen[cs]e|notice|citation|authors|change(log|s)|requirements|notes?|log)\b', re.I
)


def check_all_read(folder: Path, read: Collection[Path]) -> None:
    """Raises ValueError of tables in a folder that nobody reads; a note names other files.

    Names that begin with ``.`` or ``_`` are those of other programs.
    """
    known = {Path(os.path.abspath(path)) for path in read}
    unread = [*_others(folder, known, {parent for path in known for parent in path.parents})]
    tables = [
        path
        for path in unread
        if (table_files(path) or edge_texts(path)) and not _PROSE.match(path.name)
    ]
    if tables:
        raise ValueError(
            f"expected no tables beside those that are read in '{folder}' (got "
            f'{_names(tables, folder)} beside {_names(read, folder)}): name the table of nodes '
            'nodes.csv or nodes.parquet, or give it by --nodes; move other tables out'
        )
    if unread:
        warnings.warn(f"not read in '{folder}': {_names(unread, folder)}", stacklevel=3)


def _others(folder: Path, read: Set[Path], parents: Set[Path]) -> Iterator[Path]:
    """The entries of a folder that are not read, and hold nothing that is."""
    for entry in sorted(folder.glob('[!._]*')):
        if (path := Path(os.path.abspath(entry))) in parents:
            yield from _others(entry, read, parents)
        elif path not in read:
            yield entry


def _names(paths: Collection[Path], folder: Path) -> str:
    names = sorted(os.path.relpath(path, folder) for path in paths)
    return ', '.join(names[:5]) + (f' and {len(names) - 5} more' if len(names) > 5 else '')
