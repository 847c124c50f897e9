"""The page of errors has every message of the sources."""

from __future__ import annotations

import importlib.util

from pages import ROOT


def test_every_message_is_on_the_page() -> None:
    spec = importlib.util.spec_from_file_location('list_errors', ROOT / 'tools' / 'list_errors.py')
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text(encoding='utf-8')
    assert page.partition(tool.BEGIN + '\n')[2] == tool.listed(), "'make errors' writes the page"
