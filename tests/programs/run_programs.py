"""Runs plain programs of PyG's users on a cut graph, and compares with one process of plain PyG.

    python tests/programs/run_programs.py [--only losses,hetero] [--world 1,3] [--fair] [--list]

A program that is not right is either refused, with an error that is shown, or it is WRONG, the one
thing that must not be; or it hangs, or its process dies.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
PATHS = [str(path) for path in (ROOT, ROOT / 'tests', ROOT / 'tests' / 'programs')]
sys.path[:0] = PATHS
os.environ['PYTHONPATH'] = os.pathsep.join([*PATHS, os.environ.get('PYTHONPATH', '')])

import torch  # noqa: E402
from one_program import (  # noqa: E402
    MARK,
    all_programs,
    as_in,
    differences,
    is_hetero,
    nothing,
    on_rank,
    on_whole_graph,
)
from program_graphs import graph, hetero_graph, in_other_order, parts_of  # noqa: E402
from ranks import RankError, run_ranks  # noqa: E402

import pyg_sar  # noqa: E402

PARTS = {1: 3, 2: 2, 3: 3}  # how many parts the graph has for so many ranks
RIGHT, REFUSED, WRONG, HANGS, DIES = 'right', 'refused', 'WRONG', 'HANGS', 'DIES'


def main() -> int:
    args = parse()
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    wanted = args.only.split(',')
    programs = {
        name: program
        for name, program in all_programs().items()
        if any(part in name for part in wanted)
    }
    if args.list:
        return listed(programs)
    graphs = {False: graph(), True: hetero_graph()}
    if args.fair:
        return fair(programs, graphs)
    worlds = [int(world) for world in args.world.split(',')]
    with TemporaryDirectory() as folder:
        folders = {}
        for hetero, data in graphs.items():
            for num_parts in {PARTS[world] for world in worlds}:
                root = Path(folder) / f'{hetero}-{num_parts}'
                pyg_sar.partition_graph(data, num_parts, root, method=parts_of(data, num_parts))
                folders[hetero, num_parts] = str(root)
        return sweep(programs, graphs, folders, worlds, args.timeout)


def sweep(
    programs: dict[str, Any],
    graphs: dict[bool, Any],
    folders: dict[tuple[bool, int], str],
    worlds: list[int],
    timeout: float,
) -> int:
    """Every program on every number of ranks: a line for each, and the totals."""
    totals = {world: Counter[str]() for world in worlds}
    refusals: Counter[str] = Counter()
    width = max(map(len, programs), default=0)
    start = time.perf_counter()
    for name, program in programs.items():
        hetero = is_hetero(program)
        want = on_whole_graph(program, graphs[hetero])
        kinds, details = [], []
        for world in worlds:
            kind, detail = cut_run(program, want, world, folders[hetero, PARTS[world]], timeout)
            totals[world][kind] += 1
            kinds.append(f'{kind:8}')
            if detail and detail not in details:
                details.append(detail)
            if kind == REFUSED:
                refusals[detail.rsplit(' (', 1)[0][:110]] += 1
        print(f'{name:{width}}  {"".join(kinds)} {" | ".join(details)}', flush=True)
    print(f'\nmost frequent refusals ({len(refusals)} in all):')
    for text, count in refusals.most_common(15):
        print(f'{count:5}  {text}')
    print(f'\n{len(programs)} programs, {time.perf_counter() - start:.0f} s')
    for world, total in totals.items():
        print(f'P = {world}: ' + ', '.join(f'{count} {kind}' for kind, count in total.items()))
    return int(any(total[kind] for total in totals.values() for kind in (WRONG, HANGS, DIES)))


def cut_run(
    program: Any, want: dict[str, Any], world: int, folder: str, timeout: float
) -> tuple[str, str]:
    """What became of a program on ranks, and why."""
    module, name = program.__module__, program.__name__
    run_ranks(nothing, world)  # starts ranks where the last program ended them
    try:
        got = run_ranks(on_rank, world, module, name, folder, timeout=timeout)
    except TimeoutError as failure:
        return HANGS, str(failure).splitlines()[0]
    except RankError as failure:
        marked = [line for line in str(failure).splitlines() if MARK in line]
        if marked:
            return REFUSED, marked[-1].split(MARK, 1)[1]
        return DIES, str(failure).splitlines()[-1]
    for rank, results in enumerate(got):
        differing = differences(want, results)
        if differing:
            more = f' and {len(differing) - 3} more' if len(differing) > 3 else ''
            return WRONG, f'rank {rank} of {world}: ' + '; '.join(differing[:3]) + more
    return RIGHT, ''


def fair(programs: dict[str, Any], graphs: dict[bool, Any]) -> int:
    """Whether programs are fair tests: the same results twice, and for another order."""
    unfair = 0
    others = {hetero: in_other_order(data) for hetero, data in graphs.items()}
    for name, program in programs.items():
        hetero = is_hetero(program)
        start = time.perf_counter()
        try:
            want = on_whole_graph(program, graphs[hetero])
            texts = differences(want, on_whole_graph(program, graphs[hetero]))
            other, order = others[hetero]
            moved = differences(want, as_in(order, on_whole_graph(program, other)))
        except Exception as failure:
            print(f'{name}: does not run: {failure!r}')
            unfair += 1
            continue
        if not want:
            texts.append('no results')
        if any(isinstance(leaf, torch.Tensor) and leaf.isnan().any() for leaf in want.values()):
            texts.append('has NaN')
        ordered = getattr(program, 'by_order', False)
        if moved and not ordered:
            texts.append('depends on the order: ' + '; '.join(moved[:3]))
        if not moved and ordered:
            texts.append('does not depend on the order')
        seconds = time.perf_counter() - start
        if seconds > 2:
            texts.append(f'takes {seconds / 3:.1f} s')
        if texts:
            print(f'{name}: {" | ".join(texts)}', flush=True)
            unfair += 1
    print(f'{len(programs)} programs, {unfair} to look at')
    return int(unfair > 0)


def listed(programs: dict[str, Any]) -> int:
    """The programs by theme."""
    themes: dict[str, list[str]] = {}
    for name in programs:
        theme, program = name.split('.')
        themes.setdefault(theme, []).append(program)
    for theme, names in themes.items():
        print(f'{theme} ({len(names)}): {", ".join(names)}')
    print(f'{len(programs)} programs, {sum(map(is_hetero, programs.values()))} on HeteroData')
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', default='', help='parts of names, with commas between them')
    parser.add_argument('--world', default='1,2,3', help='numbers of ranks')
    parser.add_argument('--timeout', type=float, default=20, help='seconds for a program')
    parser.add_argument('--fair', action='store_true', help='check the programs on plain PyG')
    parser.add_argument('--list', action='store_true', help='list the programs')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
