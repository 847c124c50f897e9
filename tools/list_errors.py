"""Writes the list of all messages into docs/errors.md, from the sources: ``make errors``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs' / 'errors.md'
BEGIN = '<!-- messages -->'
TOPICS = {
    'Starting, loading, and ranks': ('launching', 'load', 'shard', 'comm'),
    'Wrapping and training': ('ddp', 'averaging', 'dropout', 'norm', 'own_rows'),
    'Layers': ('conv', 'aggregate', 'kernels', 'restricted_layers', 'attention'),
    'Functions of rows': ('rows', 'over_all_nodes', 'draws'),
    'Mini-batches': ('sampling',),
    'Cutting a graph': ('partitioner', 'partition', 'transforms'),
    'Checkpoints': ('checkpoint',),
    'Profiles': ('profiling', 'monitor', 'memory'),
}


def messages(path: Path) -> Iterator[str]:
    """What a file of Python raises and refuses; values are an ellipsis."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            found = _text(node.exc.args[0])
        elif isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'refuse':
            why = ': '.join(_text(argument) for argument in node.args[1:])
            found = f"'…' of rows that are spread over the ranks {why}"
        else:
            continue
        if found.strip(" …':;,"):
            yield ' '.join(found.split())


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return ''.join(_text(value) for value in node.values)
    return '…'


def listed() -> str:
    """All messages by topic, as Markdown."""
    by_room: dict[str, set[str]] = {}
    for path in sorted((ROOT / 'pyg_sar').rglob('*.py')):
        room = path.relative_to(ROOT / 'pyg_sar').parts[0].removesuffix('.py')
        by_room.setdefault(room, set()).update(messages(path))
    known = {room for rooms in TOPICS.values() for room in rooms}
    others = tuple(room for room in by_room if room not in known)
    lines = []
    for topic, rooms in {**TOPICS, 'Others': others}.items():
        found = sorted(set().union(*(by_room.get(room, set()) for room in rooms)))
        if found:
            lines += ['', f'### {topic}', '', *(f'- `{each.replace("`", "")}`' for each in found)]
    return '\n'.join(lines) + '\n'


def main() -> None:
    """Writes the page."""
    text = PAGE.read_text(encoding='utf-8')
    PAGE.write_text(text[: text.index(BEGIN)] + BEGIN + '\n' + listed(), encoding='utf-8')


if __name__ == '__main__':
    main()
