"""Tables of Python expressions: each is a test's program and its name."""

from __future__ import annotations


def expressions(table: str) -> list[str]:
    """The expressions of a table, which are divided by semicolons and ends of lines."""
    return [each.strip() for line in table.split('\n') for each in line.split(';') if each.strip()]
