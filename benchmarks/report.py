"""What all benchmarks do with their figures: results.json, and the tables of README.md out of it.

A README holds no figure of its own. Between ``<!-- NAME -->`` and ``<!-- /NAME -->`` stands what
the benchmark renders from results.json, after every run or with ``--render``.

results.json is a list with a report of every processor, the newest first. A run replaces the report
of its own processor. Tables have the rows of all, and a column for the processor where there are
several; a picture is that of the first. Of repeated measurements tables have the median;
results.json has the smallest and the largest as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from measured_training import num_cores
from processors import processor, processor_of, together, with_processor

import pyg_sar
from pyg_sar.utils.installed import loops

Row = dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """One question: how it is measured, and how the answer is written down.

    Attributes:
        folder: Where main.py, README.md and the results lie.
        sizes: The options of the forms ``full``, ``quick`` and ``tiny``, by name.
        measure: Gives the rows of results.json, one after another.
        render: From the report to the tables of README.md, by name.
        draw: Draws the report into a PNG file; None for no picture.
        doc: One sentence for ``--help``.
        static: Tables of README.md that come out of the code, by name.
    """

    folder: Path
    sizes: dict[str, dict[str, Any]]
    measure: Callable[[argparse.Namespace], Iterator[Row]]
    render: Callable[[dict[str, Any]], dict[str, str]]
    draw: Callable[[dict[str, Any], Path], None] | None
    doc: str
    static: dict[str, str] = field(default_factory=dict)

    def main(self) -> None:
        """The command line: every option of the sizes is one of the program."""
        try:
            self._run(self._parse())
        except (RuntimeError, ValueError) as error:
            sys.exit(f'error: {error}')
        except KeyboardInterrupt:
            sys.exit('interrupted')

    def _run(self, args: argparse.Namespace) -> None:
        out = Path(args.out) if args.out else None
        if args.render:
            self._write_readme(_read(out or self.folder), out or self.folder)
            return
        # As the README's: tiny figures mean nothing and stay out of it unless asked for.
        if out is None and args.size != 'tiny':
            out = self.folder
        keys = self.sizes['full'].keys()
        settings = {key: value for key, value in vars(args).items() if key in keys}
        report = {'size': args.size, 'environment': environment(), 'settings': settings, 'rows': []}
        others = [r for r in _read(out) if processor_of(r) != processor_of(report)] if out else []
        for row in self.measure(args):
            report['rows'].append(row)
            report['environment']['load_at_end'] = os.getloadavg()[0]
            if out is not None:  # after every row: all of them may take long
                _write([report, *others], out)
        if not report['rows']:
            return
        if out is None:
            for block in self._render([report]).values():
                print(f'\n{block}')
            return
        self._write_readme([report, *others], out)

    def _render(self, reports: list[dict[str, Any]]) -> dict[str, str]:
        """The tables of all reports, and where they were measured."""
        of_each = []
        for report in reports:
            blocks = self.render(report)
            if len(reports) > 1:
                name = processor_of(report)
                blocks = {key: with_processor(block, name) for key, block in blocks.items()}
            of_each.append({**blocks, 'environment': _environment_line(report)})
        return {name: together([of[name] for of in of_each]) for name in of_each[0]}

    def _write_readme(self, reports: list[dict[str, Any]], out: Path) -> None:
        readme = self.folder / 'README.md'
        text = readme.read_text()
        names = re.findall(r'<!-- /(\w+) -->', text)
        if not reports:
            unmeasured = f'Not measured yet: `make bench-{self.folder.name}` fills this in.'
            blocks = {**dict.fromkeys(names, ''), 'table': unmeasured, **self.static}
        else:
            blocks = {**self.static, **self._render(reports)}
            if self.draw is not None:
                picture = out / f'{self.folder.name}.png'
                self.draw(reports[0], picture)
                blocks['picture'] = f'![{self.doc}]({picture.name})'
                if len(reports) > 1:
                    blocks['picture'] += f'\n\nThe picture is of {processor_of(reports[0])}.'
            for name, block in blocks.items():
                if name != 'picture' and name not in self.static:
                    print(f'\n{block}')
        target = out / 'README.md'
        target.write_text(fill(text, blocks))
        print(f'\nwrote {target}')

    def _parse(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            description=self.doc, epilog='Defaults: ' + json.dumps(self.sizes['full'])
        )
        size = parser.add_mutually_exclusive_group()
        for name, text in (('quick', 'a short form'), ('tiny', 'to see that it runs')):
            size.add_argument(f'--{name}', dest='size', action='store_const', const=name, help=text)
        parser.add_argument('--render', action='store_true', help='only tables, from results.json')
        parser.add_argument('--out', help='folder of the results, default: beside main.py')
        for option, default in self.sizes['full'].items():
            flag = f'--{option.replace("_", "-")}'
            if isinstance(default, bool):
                parser.add_argument(flag, action='store_true', default=None)
            elif isinstance(default, list):
                parser.add_argument(flag, nargs='+', type=type(default[0]))
            else:
                parser.add_argument(flag, type=type(default))
        args = parser.parse_args()
        args.size = args.size or 'full'
        chosen = {**self.sizes['full'], **self.sizes.get(args.size, {})}
        for option, default in chosen.items():
            if getattr(args, option) is None:
                setattr(args, option, default)
        return args


def _read(folder: Path) -> list[dict[str, Any]]:
    path = folder / 'results.json'
    return json.loads(path.read_text()) if path.exists() else []


def _write(reports: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = ',\n'.join(json.dumps(report, indent=1) for report in reports)
    (folder / 'results.json').write_text(f'[\n{text}\n]\n')


def fill(text: str, blocks: dict[str, str]) -> str:
    """Replaces what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``.

    Raises:
        ValueError: If the text has no such place for one of the blocks.
    """
    for name, block in blocks.items():
        pattern = re.compile(rf'(<!-- {name} -->\n).*?(<!-- /{name} -->)', re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f'expected <!-- {name} --> and <!-- /{name} --> in README.md')
        text = pattern.sub(
            lambda found, block=block: (
                f'{found[1]}{block}\n{found[2]}' if block else found[1] + found[2]
            ),
            text,
        )
    return text


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    head, *lines = [f'| {" | ".join(map(str, line))} |' for line in (header, *rows)]
    return '\n'.join([head, '|' + '---|' * len(header), *lines])


def summary(values: Iterable[float]) -> dict[str, float]:
    """Median, smallest, largest and number of values."""
    values = list(values)
    return {
        'median': statistics.median(values),
        'min': min(values),
        'max': max(values),
        'count': len(values),
    }


def ratios(values: Sequence[float], peer: Sequence[float]) -> dict[str, float]:
    """The summary of the ratios round by round: both of a round saw the same load."""
    return summary(a / b for a, b in zip(values, peer, strict=True))


def show(found: dict[str, float], digits: int = 2, scale: float = 1) -> str:
    """The median of a summary."""
    return f'{found["median"] * scale:,.{digits}f}'


def show_size(row: Row) -> str:
    return f'{row["num_nodes"]:,} nodes, {row["num_edges"]:,} directed edges'


def show_mib(values: Sequence[float]) -> str:
    """The largest of the ranks."""
    return f'{max(values) / 2**20:,.0f}'


def show_ranks(count: int) -> str:
    """``'1 rank'`` or ``'2 ranks'``."""
    return f'{count} rank{"s" * (count > 1)}'


def environment() -> Row:
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    return {
        'processor': processor(),
        'cores': num_cores(),
        'memory_gib': round(memory / 2**30),
        'machine': platform.machine(),
        'system': platform.system(),
        'libc': ' '.join(platform.libc_ver()),
        'python': platform.python_version(),
        'torch': torch.__version__,
        'torch_geometric': version('torch_geometric'),
        'pyg_sar': pyg_sar.__version__,
        'numba': version('numba') if loops() else None,
        'preloaded': [Path(library).name for library in os.environ.get('LD_PRELOAD', '').split()],
        'load_at_start': os.getloadavg()[0],
    }


def _environment_line(report: dict[str, Any]) -> str:
    e = report['environment']
    others = [f'numba {e["numba"]}'] if e.get('numba') else []
    others += [f'{library} preloaded' for library in e.get('preloaded', ())]
    size = '' if report['size'] == 'full' else f' The {report["size"]} form.'
    return (
        f'Processor: {processor_of(report)}; {e["cores"]} cores, {e["memory_gib"]} GiB, '
        f'{e["system"]}, {e["libc"]}, Python {e["python"]}, torch {e["torch"]}, '
        f'torch_geometric {e["torch_geometric"]}{"".join(f", {other}" for other in others)}. '
        f'Load: {e["load_at_start"]:.1f} before, {e["load_at_end"]:.1f} after.{size}'
    )
