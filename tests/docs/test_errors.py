"""docs/errors.md explains words that errors of the package have."""

from __future__ import annotations

import ast
import re

from pages import ROOT

PAGE = ROOT / 'docs' / 'errors.md'
VALUE = '\0'
"""Stands for a value in a message."""


def _texts() -> str:
    """All texts of the package, with a sign for every value."""
    texts = []
    for path in (ROOT / 'pyg_sar').rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                texts.append(_text(node))
    return '\n'.join(texts)


def _text(node: ast.JoinedStr) -> str:
    return ''.join(
        str(value.value) if isinstance(value, ast.Constant) else VALUE for value in node.values
    )


def test_words_of_the_page_are_those_of_the_package() -> None:
    texts = _texts()
    rows = re.findall(r'^\| (`.*?`) \|', PAGE.read_text(encoding='utf-8'), re.MULTILINE)
    assert len(rows) > 15
    for row in rows:
        for words in re.findall(r'`([^`]+)`', row):
            pieces = re.split(r"'[\w.]+'|; |\.{3,}|\bKeyError\b|\d+", words)
            for piece in (piece.strip(" (':)") for piece in pieces):
                assert piece in texts, (words, piece)
