"""Runs published scripts on pyg_sar, compares every step with plain PyG, and writes a page.

python tools/published/main.py CHECKOUT                     # every script of the table
python tools/published/main.py CHECKOUT --only gat gcn      # those whose name has one of the words
python tools/published/main.py CHECKOUT --table FILE.py     # another table: a list SCRIPTS
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyg_scripts
import runs
import torch
from compare import difference, is_comparable
from runs import Program, Record
from scripts import ChangedError, Script, Texts, new_lines, ported, texts_of, with_saved_graphs

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0  # seconds for a run
RANKS = (1, 3)


@dataclass
class Outcome:
    """What became of a script."""

    script: Script
    verdict: str
    lines: int = 0  # that are new or changed
    more: int = 0  # of them, those beyond the promised ones
    told: str = ''  # by the promised lines alone, where more are needed


def outcome_of(script: Script, checkout: Path, folder: Path) -> Outcome:
    """Runs a script as it is and as ported, on one process and on ranks."""

    def program(texts: Texts, name: str) -> Program:
        file = _write(texts, script, folder / name)
        return Program(folder, file, shlex.split(script.options), checkout)

    try:
        texts = texts_of(script, checkout)
        original = program(with_saved_graphs(texts, script), 'plain')
    except ChangedError as error:
        return Outcome(script, f'changed: {error}')
    plain = runs.run_plain(original, LIMIT)[0]
    if plain.error:
        return Outcome(script, f'plain fails: {_first_sentence(plain.error)}')
    if not is_comparable(plain):
        return Outcome(script, 'plain fails: it has nothing to compare, or NaN')
    wrong = runs.cut(folder, LIMIT)
    if wrong:
        return Outcome(script, f'stopped: {_first_sentence(wrong)}')
    told, promised = '', 0
    for is_more in (False, True)[: 2 if script.more else 1]:
        try:
            port = ported(texts, script, is_more=is_more)
        except ChangedError as error:
            return Outcome(script, f'changed: {error}')
        lines = new_lines(texts, port)
        verdict = _verdict(plain, program(port, 'more' if is_more else 'port'))
        if verdict == 'exact' or verdict.startswith('WRONG'):
            break
        if script.more and not is_more:
            told, promised = verdict, lines
    more = lines - promised if is_more else 0
    if verdict == 'exact' and is_more:
        verdict = f'exact with {more} more {"line" if more == 1 else "lines"}'
    return Outcome(script, verdict, lines, more, told)


def _write(texts: Texts, script: Script, folder: Path) -> Path:
    """Writes the program beside what it imports."""
    folder = folder / Path(script.path).parent.name  # which may be a package
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding='utf-8')
    return folder / Path(script.path).name


def _verdict(plain: Record, program: Program) -> str:
    found = {}
    for num_ranks in RANKS:
        records = runs.run_port(program, LIMIT, num_ranks=num_ranks)
        found[num_ranks] = _verdict_of(plain, records)
    one, ranks = found.values()
    if one == ranks:
        return one
    for kind in ('WRONG', 'stopped', 'refused'):
        named = {1: 'one process', 3: '3 ranks'}
        bad = [(named[key], said) for key, said in found.items() if said.startswith(kind)]
        if bad:
            return f'{bad[0][1]} ({bad[0][0]})' if len(bad) == 1 else bad[1][1]
    return ranks


def _verdict_of(plain: Record, records: list[Record]) -> str:
    for rank, record in enumerate(records):
        said = difference(plain, record)
        if said:
            return f'WRONG: {said}' + (f' on rank {rank}' if len(records) > 1 else '')
    for record in sorted(records, key=lambda record: not record.is_refusal):
        if record.error:
            kind = 'refused' if record.is_refusal else f'stopped: {record.kind}'
            return f'{kind}: {_first_sentence(record.error)}'
    return 'exact'


def _first_sentence(text: str) -> str:
    line = ' '.join(text.split())
    return re.split(r'(?<=\w)\. ', line)[0][:300]


def page(outcomes: list[Outcome]) -> str:
    """All outcomes, as Markdown."""
    return ''


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkout', type=Path, help='folder with the published scripts')
    parser.add_argument('--only', nargs='*', default=[''], help='words of names')
    parser.add_argument('--table', type=Path, help='a file of Python with a list SCRIPTS')
    parser.add_argument('--out', type=Path, help='the page to write, such as docs/published.md')
    parser.add_argument('--keep', type=Path, help='folder that keeps programs and logs')
    args = parser.parse_args()
    scripts = runpy.run_path(str(args.table))['SCRIPTS'] if args.table else pyg_scripts.SCRIPTS
    root = args.keep or Path(tempfile.mkdtemp(prefix='published-'))
    outcomes = []
    for script in scripts:
        if any(word in script.name for word in args.only):
            folder = root / re.sub(r'\W+', '_', script.name)
            shutil.rmtree(folder, ignore_errors=True)
            outcome = outcome_of(script, args.checkout.resolve(), folder.resolve())
            outcomes.append(outcome)
            print(f'{script.name}: {outcome.verdict} ({outcome.lines} lines)', flush=True)
            if outcome.told:
                print(f'    promised lines alone: {outcome.told}', flush=True)
    if args.out:
        args.out.write_text(page(outcomes), encoding='utf-8')
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    print(Counter(outcome.verdict.split(':')[0] for outcome in outcomes))


if __name__ == '__main__':
    if os.environ.get('PYTHONHASHSEED') != '0':  # sets have one order in all processes
        os.environ['PYTHONHASHSEED'] = '0'
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
