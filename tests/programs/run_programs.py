"""Runs plain programs of PyG's users on a cut graph, and compares with one process of plain PyG.

    python tests/programs/run_programs.py [--only losses,hetero] [--world 1,3]

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
    differences,
    is_hetero,
    nothing,
    on_rank,
    on_whole_graph,
)
from program_graphs import graph, hetero_graph, parts_of  # noqa: E402
from ranks import RankError, run_ranks  # noqa: E402

import pyg_sar  # noqa: E402

PARTS = {1: 3, 2: 2, 3: 3}  # how many parts the graph has for so many ranks
RIGHT, REFUSED, WRONG, HANGS, DIES = 'right', 'refused', 'WRONG', 'HANGS', 'DIES'


def folders_of(root: Path) -> None:
    """Partitions both graphs in the numbers of parts of all worlds."""
    for hetero, data in ((False, graph()), (True, hetero_graph())):
        for num_parts in set(PARTS.values()):
            parts = parts_of(data, num_parts)
            pyg_sar.partition_graph(data, num_parts, root / f'{hetero}-{num_parts}', method=parts)


def outcome(name: str, world: int, root: Path, timeout: float = 120) -> tuple[str, str]:
    """What became of a program on so many ranks, and why."""
    hetero = is_hetero(name)
    want = on_whole_graph(all_programs()[name], hetero_graph() if hetero else graph())
    return cut_run(name, want, world, str(root / f'{hetero}-{PARTS[world]}'), timeout)


def cut_run(
    name: str, want: dict[str, Any], world: int, folder: str, timeout: float
) -> tuple[str, str]:
    """What became of a program on a partition folder, and why."""
    run_ranks(nothing, world)  # starts ranks where the last program ended them
    try:
        got = run_ranks(on_rank, world, name, folder, timeout=timeout)
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


def main() -> int:
    """A line for each program, and the totals."""
    args = parse()
    warnings.simplefilter('ignore')
    torch.set_num_threads(1)
    wanted, worlds = args.only.split(','), [int(world) for world in args.world.split(',')]
    names = [name for name in all_programs() if any(part in name for part in wanted)]
    totals = {world: Counter[str]() for world in worlds}
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        folders_of(Path(folder))
        for name in names:
            found = {world: outcome(name, world, Path(folder), args.timeout) for world in worlds}
            for world, (kind, _) in found.items():
                totals[world][kind] += 1
            details = dict.fromkeys(detail for _, detail in found.values() if detail)
            kinds = ''.join(f'{kind:8}' for kind, _ in found.values())
            print(f'{name:50}  {kinds} {" | ".join(details)}', flush=True)
    print(f'\n{len(names)} programs, {time.perf_counter() - start:.0f} s')
    for world, total in totals.items():
        print(f'P = {world}: ' + ', '.join(f'{count} {kind}' for kind, count in total.items()))
    return int(any(total[kind] for total in totals.values() for kind in (WRONG, HANGS, DIES)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--only', default='', help='parts of names, with commas between them')
    parser.add_argument('--world', default='1,2,3', help='numbers of ranks')
    parser.add_argument('--timeout', type=float, default=60, help='seconds for a program')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
