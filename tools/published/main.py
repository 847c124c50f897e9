"""Runs published scripts on pyg_sar, compares every step with plain PyG, and writes a page.

python tools/published/main.py CHECKOUT                     # every script of the table
python tools/published/main.py CHECKOUT --only gat gcn      # those whose name has one of the words
python tools/published/main.py CHECKOUT --table FILE.py     # another table: a list SCRIPTS
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyg_scripts
import runs
import torch
from compare import difference, is_comparable
from record import Record
from runs import Program
from scripts import ChangedError, Script, Texts, new_lines, ported, texts_of, with_saved_graphs

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0  # seconds for a run
RANKS = (1, 3)


RESULTS = Path(__file__).with_name('results.json')

_HEAD = """\
# Published programs

`make published CHECKOUT=FOLDER` takes examples and benchmarks from a checkout of PyG and changes
the lines that [porting](porting.md) names. Each runs
with plain PyG, with pyg_sar on one process that holds 3 parts, and on 3 ranks (gloo); if the
promised lines are refused, again with the lines that the message asks for.

After every step of every optimizer each parameter and gradient is compared with plain PyG's, on all
ranks, and at the end every printed number, except times. All must be equal to 1e-9 of the largest
entry of a tensor. PyG {pyg} with its scripts of {revision}, torch {torch}. The graph is a small
synthetic one under the dataset's name (60 to 240 nodes, uneven random parts), in double precision,
without dropout, with few epochs and small widths.
"""

_MEANINGS = {
    'exact': 'with the promised lines alone',
    'exact with more lines': 'which the message, the documentation or the list names',
    'refused': 'an error says why, and what to do instead',
    'WRONG': 'other numbers, without an error',
    'not comparable': 'exact on one process; other numbers on ranks',
    'stopped': 'an error that pyg_sar did not mean, or no end within two minutes',
    'plain fails': 'with plain PyG of today',
    'changed': 'the script is not the one that the table of edits was made for',
}


@dataclass
class Outcome:
    """What became of a script."""

    script: Script
    verdict: str
    lines: int = 0  # that are new or changed
    more: int = 0  # of them, those beyond the promised ones
    steps: int = 0  # of optimizers, that were compared
    printed: int = 0  # lines, that were compared
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
        verdict = _verdict(plain, program(port, 'more' if is_more else 'port'), script.differs)
        if verdict == 'exact' or verdict.startswith('WRONG'):
            break
        if script.more and not is_more:
            told, promised = verdict, lines
    more = lines - promised if is_more else 0
    if verdict == 'exact' and is_more:
        verdict = f'exact with {more} more {"line" if more == 1 else "lines"}'
    return Outcome(script, verdict, lines, more, len(plain.steps), len(plain.lines), told)


def _write(texts: Texts, script: Script, folder: Path) -> Path:
    """Writes the program beside what it imports."""
    folder = folder / Path(script.path).parent.name  # which may be a package
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding='utf-8')
    return folder / Path(script.path).name


def _verdict(plain: Record, program: Program, differs: str) -> str:
    found = {}
    for num_ranks in RANKS:
        records = runs.run_port(program, LIMIT, num_ranks=num_ranks)
        found[num_ranks] = _verdict_of(plain, records)
    one, ranks = found.values()
    if differs and one == 'exact' and ranks.startswith('WRONG'):
        return f'not comparable: {differs}'
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
    line = ' '.join(text.split()).split(': File "')[0]
    return re.split(r'(?<=\w)\. ', line)[0][:300]


def facts_of(outcomes: list[Outcome], revision: str) -> dict[str, Any]:
    """All outcomes, as results.json has them."""
    return {
        'pyg': importlib.metadata.version('torch_geometric'),
        'torch': torch.__version__.split('+')[0],
        'revision': revision,
        'programs': [_fact(outcome) for outcome in outcomes],
    }


def _fact(outcome: Outcome) -> dict[str, Any]:
    script, is_more = outcome.script, outcome.more or not outcome.verdict.startswith('exact')
    without = outcome.told if outcome.told.startswith('stopped') else ''
    without = without and f'without them {without}'
    texts = (script.why if is_more else '', without, script.note)
    return {
        'program': script.name,
        'steps': outcome.steps,
        'prints': outcome.printed,
        'lines': outcome.lines,
        'result': outcome.verdict,
        'note': '; '.join(text for text in texts if text),
    }


def page(facts: dict[str, Any]) -> str:
    """The counts, and every program that is not exact by the promised lines alone."""
    programs = facts['programs']
    counts = Counter(_kind(program) for program in programs)
    lines = [
        _HEAD.format(**facts),
        '| | programs | meaning |',
        '|---|---|---|',
        *(
            f'| *{kind}* | {counts[kind]} | {meaning} |'
            for kind, meaning in _MEANINGS.items()
            if counts[kind] or kind == 'WRONG'
        ),
        '',
        'All programs, with the lines that are more and why: `tools/published/results.json`.',
        '',
    ]
    more, groups = list[str](), dict[str, list[str]]()
    for program in programs:
        kind, name = _kind(program), program['program'].removeprefix('examples/')
        if kind == 'exact with more lines':
            more.append(f'`{name}` {program["result"].split()[2]}')
        elif kind != 'exact':
            groups.setdefault(program['result'], []).append(f'`{name}`')
    lines.append(f'- exact with so many more lines: {", ".join(more)}.')
    for why, names in groups.items():
        lines.append(f'- {", ".join(names)}: {why}.')
    return '\n'.join(lines) + '\n'


def _kind(program: dict[str, Any]) -> str:
    if program['result'].startswith('exact with'):
        return 'exact with more lines'
    return str(program['result'].split(':')[0])


def _revision(checkout: Path) -> str:
    """The commit of a checkout, if git knows it."""
    words = ['git', '-C', str(checkout), 'log', '-1', '--format=%h of %cs']
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return f'commit {done.stdout.strip()}' if done.returncode == 0 else 'a checkout'


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkout', type=Path, help='folder with the published scripts')
    parser.add_argument('--only', nargs='*', default=[''], help='words of names')
    parser.add_argument('--table', type=Path, help='a file of Python with a list SCRIPTS')
    parser.add_argument('--out', type=Path, help='writes results.json, and this page of it')
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
            print(
                f'{script.name}: {outcome.verdict} ({outcome.lines} lines, {outcome.steps} steps)',
                flush=True,
            )
            if outcome.told:
                print(f'    promised lines alone: {outcome.told}', flush=True)
    if args.out:
        facts = facts_of(outcomes, _revision(args.checkout))
        RESULTS.write_text(json.dumps(facts, indent=1) + '\n', encoding='utf-8')
        args.out.write_text(page(facts), encoding='utf-8')
    if not args.keep:
        shutil.rmtree(root, ignore_errors=True)
    print(Counter(outcome.verdict.split(':')[0] for outcome in outcomes))


if __name__ == '__main__':
    if os.environ.get('PYTHONHASHSEED') != '0':  # sets have one order in all processes
        os.environ['PYTHONHASHSEED'] = '0'
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
