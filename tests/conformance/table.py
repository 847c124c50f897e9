"""Writes docs/convs.md: what pyg_sar does with every conv of PyG, from a run of all cases.

python tests/conformance/table.py            # half an hour
python tests/conformance/table.py --costs    # only the costs again, from benchmarks/convs
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ('.', 'cases')]

import torch_geometric
from conv_cases import CASES
from outcome import CUTS, WORLD_SIZE, Outcome, outcomes

PATH = Path(__file__).parents[2] / 'docs' / 'convs.md'
COSTS = Path(__file__).parents[2] / 'benchmarks' / 'convs' / 'results.json'

_INTRO = """\
# Every conv of PyTorch Geometric

Which convs are exact on a partitioned graph, and at what price. `make convs` writes this page: it
runs every configuration on {world_size} ranks, in float64, on parts by METIS and on random parts,
and compares output and gradients with those of PyG {version} on the whole graph. {num_exact} of
{num_cases} configurations are exact: equal to 1e-10 of a tensor's largest entry.

**path**: how the conv is computed ([models](models.md#convs)). *softmax* is a replay with softmax,
*local* passes no message. Graphs as small as these are one chunk of the path by destination.

**tensors**: how many tensors messages read at a source.

**rows held**: how many rows of other ranks a rank held at once in receive buffers, at most, in
forward or backward on {num_parts} random parts. The table shows the rank that held most, for each
tensor: rows, then rows divided by those of its largest block, and by its own rows. Gradients on
their way back take as much again. *together* counts the rows of many blocks that came at once, of
all tensors. *degrees*: one number of every halo node came, as `gcn_norm` needs it.

**result**: *refused* comes with the reason, at construction or at the first forward. *not yet*: the
graph cannot be partitioned so far. *fails* and *wrong* are defects.

**1 process**, **4 processes**: CPU seconds of forward and backward, of all processes together,
divided by those of plain PyG on one process. They are of one configuration of every conv, 64 to 64
channels, on 60,000 nodes and 700,000 edges ([benchmark](../benchmarks/convs/README.md)), and stand
beside the first row of the conv.

"""


def render(found: dict[str, Outcome]) -> str:
    """The page."""
    counts = Counter(outcome.status for outcome in found.values())
    intro = _INTRO.format(
        world_size=WORLD_SIZE,
        version=torch_geometric.__version__,
        num_exact=counts['exact'],
        num_cases=len(found),
        num_parts=CUTS['random'],
    )
    header = (
        '| conv | configuration | path | tensors | rows held | result | 1 process | 4 processes |'
    )
    lines = [header, '|---' * 8 + '|']
    for name in sorted(found, key=lambda n: (CASES[n].conv == 'MessagePassing', CASES[n].conv)):
        case = CASES[name]
        lines.append(f'| {case.conv} | {case.config} | {_row(found[name])} |')
    own = next(i for i, line in enumerate(lines) if line.startswith('| MessagePassing'))
    parts = [*lines[:own], '', '## Convs of your own', '', *lines[:2], *lines[own:]]
    return with_costs(intro + '\n'.join(parts) + '\n')


def with_costs(page: str) -> str:
    """The page with what the benchmark of convs has measured."""
    costs = {}
    newest, *_ = json.loads(COSTS.read_text())
    for row in newest['rows']:
        shares = [v['cpu_of_plain']['median'] for v in row.get('variants', ())[1:]]
        costs[row['conv']] = ' |'.join(f' {share:.2f}' for share in shares)

    def cost(found: re.Match[str]) -> str:
        share = costs.pop(found[2], '')
        return f'{found[1]} exact |{share}{" |" * bool(share)}'

    return re.sub(r'^(\| (\w+) \|.*\|) exact \|.*$', cost, page, flags=re.MULTILINE)


def _row(outcome: Outcome) -> str:
    if outcome.status in ('failed', 'wrong'):
        stage = outcome.reason.split(': ')[1] if outcome.status == 'failed' else ''
        return f' | | | **{"fails in " + stage if stage else "wrong"}**'
    if outcome.status != 'exact':
        reason = ' '.join(outcome.reason.split()).replace('|', '\\|')
        _, _, short = reason.partition('cannot run on a partitioned graph: ')
        return f' | | | {outcome.status}: {short or reason}'
    paths = ', '.join(outcome.results[0].paths) or 'local'
    num_tensors = outcome.results[0].num_tensors
    return f'{paths} | {num_tensors} | {_rows_held(outcome)} | exact'


def _rows_held(outcome: Outcome) -> str:
    results = outcome.results
    held = []
    if any(r.halo for r in results):
        # One rank's figures, the one that holds most.
        r = max(results, key=lambda r: r.halo)
        rows = r.halo / r.num_tensors
        blocks, own = rows / r.largest_block, rows / r.num_own
        held.append(f'{rows:.0f}: {blocks:.1f} blocks, {own:.1f} of own')
    if any(r.together for r in results):
        r = max(results, key=lambda r: r.together)
        held.append(f'together: {r.together}, {r.together / r.num_own:.1f} of own')
    if any(r.together_numbers for r in results):
        held.append('degrees')
    return '; '.join(held) or 'none'


def main() -> None:
    """Runs all cases and writes the page."""
    if '--costs' in sys.argv:
        PATH.write_text(with_costs(PATH.read_text(encoding='utf-8')), encoding='utf-8')
        return
    # As in the tests.
    warnings.simplefilter('error')
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(Path(folder))
    PATH.write_text(render(found), encoding='utf-8')
    print(f'wrote {PATH}: {dict(Counter(o.status for o in found.values()))}')


if __name__ == '__main__':
    main()
