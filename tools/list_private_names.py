"""Writes the table of private names into CONTRIBUTING.md: ``make private-names``."""

from __future__ import annotations

from pathlib import Path

from pyg_sar.utils.private_names import NAMES

PAGE = Path(__file__).resolve().parents[1] / 'CONTRIBUTING.md'
BEGIN, END = '<!-- private names -->\n', '<!-- end of private names -->\n'


def listed() -> str:
    """The table, as Markdown."""
    rows = ['| name | what for | without it |', '|---|---|---|']
    for each in NAMES:
        names = ', '.join(f'`{name}`' for name in each.names.split())
        rows.append(f'| {names} | {each.purpose} | {each.without or "an error that names it"} |')
    return '\n'.join(rows) + '\n'


def replaced(page: str) -> str:
    """The page with a table of today."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + listed() + END + rest.partition(END)[2]


if __name__ == '__main__':
    PAGE.write_text(replaced(PAGE.read_text(encoding='utf-8')), encoding='utf-8')
