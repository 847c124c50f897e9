"""Draws sequences of calls for an hour: ``python tests/fuzz/sequences.py --minutes 60 --seed 0``.

Every sequence runs with plain PyG and on one to three ranks, which must give the same. One that
does not is made as short as it can be and printed: ``--case 'Sequence(...)'`` runs it again.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / 'properties')]

import call_sequences as c  # noqa: E402 (as a program it has not pytest's paths)
from sequence_runs import check  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 1 if a sequence is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--conv', default='', choices=['', *c.CONVS], help='this one alone')
    parser.add_argument('--case', help='this one alone, as it was printed')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    if args.case is not None:
        check(eval(args.case, vars(c)))
        return 0
    end, seed, drawn = time.monotonic() + 60 * args.minutes, args.seed, Counter[str]()
    while time.monotonic() < end:
        seed += 1

        @hypothesis.seed(seed)
        @settings(
            max_examples=100,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        )
        @given(c.sequences(args.conv))
        def some(case: c.Sequence) -> None:
            drawn[case.conv] += 1
            check(case)

        try:
            some()
        except Exception as error:
            print(f'seed {seed}: {error!r}', *getattr(error, '__notes__', ()), sep='\n')
            return 1
        print(f'seed {seed}: {sum(drawn.values())} sequences, none wrong', flush=True)
    print(', '.join(f'{conv} {count}' for conv, count in sorted(drawn.items())))
    return 0


if __name__ == '__main__':
    sys.exit(main())
