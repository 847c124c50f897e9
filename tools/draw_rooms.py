"""Draws docs/rooms.svg, the rooms of the package and a forward: ``python tools/draw_rooms.py``.

The floors are the layers of ``pyproject.toml``, the imports those of the sources. So a room that is
new, or that imports another one, changes the picture.
"""

from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / 'docs' / 'rooms.svg'
ROOMS = {
    'launch': ('init, launch, pyg-sar run', 'ranks in turn, info, profile'),
    'loader': ('NeighborLoader', 'LinkNeighborLoader'),
    'checkpoint': ('training runs and rows', 'on disk'),
    'nn': ('SARConv, DistributedDataParallel, norms, dropout by id, NodeEmbedding',),
    'rows': (
        'tensors that know whose rows they hold, a rule for every function of torch, load_shard',
    ),
    'ops': ('sums over blocks of edges, with their backward: SpMM, replay, online softmax',),
    'partition': ('from any graph', 'to a folder of parts'),
    'comm': ('ranks: votes, sums,', 'rows of a part, faults'),
    'shard': ('the files of a part, and the blocks of edges that a rank loads',),
    'utils': ('no graphs, no ranks: private names of torch, seeds by id, durable writes, the log',),
}
"""By name, what a room has, in lines of a box."""

FORWARD = {
    'nn': 'one vote; the path of the conv',
    'rows': 'whose rows are these?',
    'ops': 'messages and sums, block by block',
    'comm': 'the rows of one part at a time',
    'shard': 'which edges, which rows',
    'utils': 'compiled loops',
}
"""What a forward does in a room, in order."""

_LEFT, _RIGHT, _HEIGHT, _GAP, _TOP = 20, 620, 62, 20, 52


def floors() -> list[list[str]]:
    """The rooms of every floor, the highest first."""
    text = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
    layers = re.search(r'^layers = \[\n(.*?)^\]', text, re.DOTALL | re.MULTILINE)
    assert layers is not None
    return [layer.split(' | ') for layer in re.findall(r"'(.+)'", layers[1])]


def imports(room: str) -> list[str]:
    """The rooms that a room imports, the highest first."""
    found = set()
    for path in (ROOT / 'pyg_sar' / room).rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            names = [node.module or ''] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                other = re.match(r'pyg_sar\.(\w+)', name)
                if other is not None:
                    found.add(other[1])
    return [other for other in ROOMS if other in found - {room}]


def _text(
    x: float, y: float, words: str, size: int = 12, fill: str = '#222', more: str = ''
) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'


def picture() -> str:
    """The text of the picture."""
    rows = floors()
    height = _TOP + len(rows) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" '
        'font-family="Helvetica, Arial, sans-serif">',
        '<title>The rooms of pyg_sar: a room imports rooms below it; a forward goes from nn down '
        'to utils</title>',
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" '
        'markerHeight="6" orient="auto"><path d="M0 0L10 5L0 10z" fill="#c55a11"/></marker></defs>',
        f'<rect width="900" height="{height}" fill="#fff"/>',
        _text(_LEFT, 28, 'A room imports rooms below it', 15, more=' font-weight="bold"'),
        _text(_RIGHT + 20, 28, 'A forward', 15, '#c55a11', ' font-weight="bold"'),
    ]
    last = None
    for floor, names in enumerate(rows):
        top = _TOP + floor * (_HEIGHT + _GAP)
        width = (_RIGHT - _LEFT - 20 * (len(names) - 1)) / len(names)
        for number, name in enumerate(names):
            left = _LEFT + number * (width + 20)
            color = '#f2a93b' if name in FORWARD else '#4c78a8'
            parts.append(
                f'<rect x="{left}" y="{top}" width="{width}" height="{_HEIGHT}" rx="5" '
                f'fill="{color}" fill-opacity=".18" stroke="{color}"/>'
            )
            parts.append(_text(left + 12, top + 20, name, 14, more=' font-weight="bold"'))
            below = ', '.join(imports(name)) or 'no room'
            if len(ROOMS[name]) == 1:
                parts.append(_text(left + 12, top + 38, ROOMS[name][0]))
                parts.append(_text(left + 12, top + 54, f'imports {below}', 11, '#666'))
            else:
                for line, words in enumerate(ROOMS[name]):
                    parts.append(_text(left + 110, top + 20 + 15 * line, words))
                parts.append(_text(left + 12, top + 54, f'imports {below}', 11, '#666'))
            if name in FORWARD:
                x = _RIGHT - 20
                if last is not None:
                    parts.append(
                        f'<path d="M{x} {last + 2}V{top - 3}" fill="none" stroke="#c55a11" '
                        'stroke-width="3" marker-end="url(#a)"/>'
                    )
                last = top + _HEIGHT
                parts.append(_text(_RIGHT + 20, top + 36, FORWARD[name], fill='#c55a11'))
    return '\n'.join([*parts, '</svg>\n'])


if __name__ == '__main__':
    PICTURE.write_text(picture(), encoding='utf-8')
