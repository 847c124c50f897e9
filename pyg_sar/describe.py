"""The command line: ``python -m pyg_sar.describe PARTS [--verify] [--plot FILE]``.

Nothing imports this module: runpy warns when the package has already imported what it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tqdm import tqdm

from pyg_sar.inspection import verify_partition
from pyg_sar.inspection.picture import draw_partition
from pyg_sar.inspection.report import report
from pyg_sar.partitioner.write.summary import summarize
from pyg_sar.shard.format.meta import read_meta


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit code: 1 if the folder is not whole."""
    args = _parser().parse_args(argv)
    try:
        return _run(args)
    except (ValueError, OSError) as error:
        print(f'error: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print('error: interrupted', file=sys.stderr)
        return 130


def _run(args: argparse.Namespace) -> int:
    meta = read_meta(args.parts)
    print(report(meta))
    if args.plot is not None:
        draw_partition(summarize(meta), args.plot)
        print(f'drew {args.plot}')
    if not args.verify:
        return 0
    with tqdm(desc='verifying parts', total=meta.num_parts, delay=0.5) as bar:
        problems = verify_partition(args.parts, on_part=bar.update)
    for problem in problems:
        print(f'wrong: {problem}', file=sys.stderr)
    if not problems:
        print('verified: every file, node, edge and exchanged row is as it was written')
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='python -m pyg_sar.describe',
        description='Tells what a partition folder holds, what it costs, and whether it is whole.',
        allow_abbrev=False,
    )
    parser.add_argument('parts', metavar='PARTS', help='a folder of pyg_sar.partition')
    parser.add_argument(
        '--plot', metavar='FILE', help='draw rows exchanged and balance, such as parts.png'
    )
    parser.add_argument(
        '--verify', action='store_true', help='read all files and check every invariant'
    )
    return parser


if __name__ == '__main__':
    sys.exit(main())
