"""What a table says of a published script, and the texts of the programs that run."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from pathlib import Path

# An old text, the new one, and at how many places the old one must be: one, if nothing is said.
Edit = tuple[str, str] | tuple[str, str, int]
NUM_EPOCHS = 3
INIT = 'import pyg_sar; pyg_sar.init()'


class ChangedError(Exception):
    """The script is not the one that the table was made for."""


@dataclass(frozen=True)
class Script:
    """A published script, and the lines that change."""

    path: str  # in the checkout
    options: str = ''  # of its command line
    beside: tuple[str, ...] = ()  # other files of its folder, which edits change, too
    loop: str = ''  # the range of its epochs, which become three
    plain: tuple[Edit, ...] = ()  # changes of all runs, such as smaller sizes
    loads: tuple[str, ...] = ('dataset[0]',)  # expressions that give graphs
    graphs: int = 1  # how many graphs each of them gives
    wraps: tuple[tuple[str, str], ...] = (('model', 'optimizer = '),)  # and the line that follows
    more: tuple[Edit, ...] = ()  # what the porting page or an error says beyond the promised lines
    moved: bool = False  # whether `more` also takes the place of the promised lines of `wraps`
    why: str = ''  # what these lines are
    note: str = ''  # what is not as published
    differs: str = ''  # why the numbers of ranks are others, as the documentation says
    label: str | None = None  # how the page calls the options

    @property
    def name(self) -> str:
        """How the page calls it."""
        return f'{self.path} {self.options if self.label is None else self.label}'.strip()


Texts = dict[str, str]  # by the file's name


def texts_of(script: Script, checkout: Path) -> Texts:
    """The script, and the files beside it, with the changes of all runs."""
    folder = (checkout / script.path).parent
    names = [Path(script.path).name, *script.beside]
    texts = {name: (folder / name).read_text(encoding='utf-8') for name in names}
    edits = list(script.plain)
    if script.loop:
        start = re.search(r'\((\d+), ', script.loop)
        first = int(start[1]) if start else 0
        edits.append((script.loop, f'range({first}, {first + NUM_EPOCHS})'))
    return edited(texts, edits)


def with_saved_graphs(texts: Texts, script: Script) -> Texts:
    """Saves the graphs that are to be cut; ``saved`` is a function that the run gives."""
    edits: list[Edit] = []
    for number, load in enumerate(script.loads):
        left, equals, expression = load.rpartition('= ')
        edits.append((load, f'{left}{equals}saved({expression}, {number})'))
    return edited(texts, edits)


def ported(texts: Texts, script: Script, *, is_more: bool) -> Texts:
    """The program with the promised lines, and perhaps with more."""
    edits: list[Edit] = []
    for number, load in enumerate(script.loads):
        left, equals, _ = load.rpartition('= ')
        new = f"pyg_sar.load_shard('parts{number}')"
        if script.graphs > 1:
            folders = ', '.join(f"'parts{number}.{graph}'" for graph in range(script.graphs))
            new = f'map(pyg_sar.load_shard, [{folders}])'
        if load.startswith('DataLoader('):
            new = f'[{new}]'
        edits.append((load, left + equals + new))
    first, *others = texts
    if not (is_more and script.moved):
        edits += [_wrap(texts, *wrap) for wrap in script.wraps]
    if is_more:
        edits += script.more
    texts = edited(texts, edits)
    texts = {name: text if name == first else _imports(text) for name, text in texts.items()}
    return {first: _with_first_line(texts[first], INIT), **{name: texts[name] for name in others}}


def edited(texts: Texts, edits: list[Edit]) -> Texts:
    """The texts with all edits, each of which fits at one place."""
    for old, new, *numbers in edits:
        expected = numbers[0] if numbers else 1
        count = sum(text.count(old) for text in texts.values())
        if count != expected:
            raise ChangedError(f'{old!r} is at {count} places (expected {expected})')
        texts = {name: text.replace(old, new) for name, text in texts.items()}
    return texts


def new_lines(before: Texts, after: Texts) -> int:
    """How many lines of `after` are new or changed."""
    return sum(
        line.startswith('+ ')
        for name in after
        for line in difflib.ndiff(before[name].splitlines(), after[name].splitlines())
    )


def _wrap(texts: Texts, model: str, following: str) -> Edit:
    lines = [line for text in texts.values() for line in text.splitlines() if following in line]
    if len(lines) != 1:
        raise ChangedError(f'{following!r} is in {len(lines)} lines, not in one')
    indent = re.match(r'\s*', lines[0])[0]  # type: ignore[index]
    wrap = f'{indent}{model} = pyg_sar.DistributedDataParallel({model})'
    return lines[0] + '\n', f'{wrap}\n{lines[0]}\n'


def _imports(text: str) -> str:
    return _with_first_line(text, 'import pyg_sar') if 'pyg_sar' in text else text


def _with_first_line(text: str, line: str) -> str:
    """Before the first import, except that of the future."""
    imports = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.Import)
        or (isinstance(node, ast.ImportFrom) and node.module != '__future__')
    ]
    lines = text.splitlines(keepends=True)
    lines.insert(imports[0].lineno - 1, line + '\n')
    return ''.join(lines)
