"""Writes docs/convs.md and table.json: what pyg_sar does with every conv of PyG, in all cases.

python tests/conformance/table.py            # half an hour
python tests/conformance/table.py --page     # only the page again, with costs of benchmarks/convs
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ('.', 'cases')]

import torch_geometric
from conv_cases import CASES
from outcome import WORLD_SIZE, Outcome, outcomes

PATH = Path(__file__).parents[2] / 'docs' / 'convs.md'
FACTS = Path(__file__).with_suffix('.json')
COSTS = Path(__file__).parents[2] / 'benchmarks' / 'convs' / 'results.json'
OWN = 'MessagePassing'

Fact = dict[str, Any]
"""What became of a configuration: a line of table.json."""

_INTRO = """\
# Every conv of PyTorch Geometric

Which convs are exact on a partitioned graph, and at what price. `make convs` runs every
configuration on {world_size} ranks, in float64, on parts by METIS and on random parts, and compares
output and gradients with PyG {version} on the whole graph. {num_exact} of {num_cases}
configurations are exact: equal to 1e-10 of a tensor's largest entry. All configurations, and the
rows that a rank held: `tests/conformance/table.json`.

- **runs**: configurations that were run, all of them exact unless the cell says how many.
- **path**: how the conv is computed ([models](models.md#convs)). *learned* is SpMM with learned
  values, *softmax* a replay with softmax; *local* passes no message.
- **1**, **4**: CPU seconds of forward and backward on 1 and 4 processes, divided by plain PyG's,
  of one configuration ([benchmark](../benchmarks/convs/README.md)).

"""


def facts_of(found: dict[str, Outcome]) -> list[Fact]:
    """What became of all configurations, conv after conv."""
    names = sorted(found, key=lambda n: (CASES[n].conv == OWN, CASES[n].conv))
    return [{'conv': CASES[n].conv, 'config': CASES[n].config, **_fact(found[n])} for n in names]


def _fact(outcome: Outcome) -> Fact:
    if outcome.status != 'exact':
        reason = ' '.join(outcome.reason.split())
        _, _, short = reason.partition('cannot run on a partitioned graph: ')
        return {'status': outcome.status, 'reason': short or reason}
    first = outcome.results[0]
    return {
        'status': 'exact',
        'paths': list(first.paths) or ['local'],
        'tensors': first.num_tensors,  # that messages read at a source
        'held': _rows_held(outcome),
    }


def _rows_held(outcome: Outcome) -> str:
    """Rows of others at once on the rank that held most, of a tensor: in blocks, and of its own.

    *together*: rows of many blocks that came at once. *degrees*: a number of every halo node came.
    """
    results = outcome.results
    held = []
    if any(r.halo for r in results):
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


def render(facts: list[Fact]) -> str:
    """The page."""
    num_exact = sum(fact['status'] == 'exact' for fact in facts)
    intro = _INTRO.format(
        world_size=WORLD_SIZE,
        version=torch_geometric.__version__,
        num_exact=num_exact,
        num_cases=len(facts),
    )
    by_conv: dict[str, list[Fact]] = {}
    for fact in facts:
        by_conv.setdefault(fact['conv'], []).append(fact)
    own = by_conv.pop(OWN, [])
    costs = _costs()
    lines, refused = [], []
    for conv, of in by_conv.items():
        exact = [fact for fact in of if fact['status'] == 'exact']
        if exact:
            paths = _names(path for fact in exact for path in fact['paths'])
            runs = f'{len(exact)} of {len(of)}' if len(exact) < len(of) else str(len(of))
            cells = [conv, runs, paths, *costs.get(conv, ['', ''])]
            lines.append(f'| {" | ".join(cells)} |')
        refused += [fact for fact in of if fact['status'] != 'exact']
    parts = [
        f'{intro}| conv | runs | path | 1 | 4 |\n|---|---|---|---|---|',
        *lines,
        '\n## Not exact\n',
        *_not_exact(refused),
        '\n## Convs of your own\n\nExact are, by path:\n',
        *_by_path(own),
    ]
    return '\n'.join(parts) + '\n'


def _not_exact(facts: list[Fact]) -> list[str]:
    """A line for every reason, with its convs."""
    convs: dict[str, list[str]] = {}
    for fact in facts:
        reason = fact['reason'].partition(' (got ')[0]
        convs.setdefault(f'{fact["status"]}: {reason}', []).append(fact['conv'])
    return [f'- {", ".join(dict.fromkeys(names))}: {why}.' for why, names in convs.items()]


def _by_path(facts: list[Fact]) -> list[str]:
    """A line for every path, with its configurations; a status stands for the path of others."""
    by_path: dict[str, list[str]] = {}
    for fact in facts:
        paths = _names(fact.get('paths', [f'**{fact["status"]}**']))
        by_path.setdefault(paths, []).append(fact['config'])
    return [f'- *{paths}*: {"; ".join(configs)}.' for paths, configs in by_path.items()]


def _names(paths: Iterable[str]) -> str:
    """The paths as the page names them."""
    return ', '.join(dict.fromkeys(paths)).replace('SpMM with learned values', 'learned')


def _costs() -> dict[str, list[str]]:
    """CPU seconds on 1 and 4 processes, of plain PyG's, by conv."""
    newest, *_ = json.loads(COSTS.read_text())
    return {
        row['conv']: [f'{v["cpu_of_plain"]["median"]:.2f}' for v in row['variants'][1:]]
        for row in newest['rows']
        if 'variants' in row
    }


def written() -> list[Fact]:
    """What table.json has."""
    facts: list[Fact] = json.loads(FACTS.read_text(encoding='utf-8'))
    return facts


def main() -> None:
    """Runs all cases and writes both files."""
    if '--page' not in sys.argv:
        warnings.simplefilter('error')  # as in the tests
        with tempfile.TemporaryDirectory() as folder:
            facts = facts_of(outcomes(Path(folder)))
        lines = ',\n'.join(json.dumps(fact) for fact in facts)
        FACTS.write_text(f'[\n{lines}\n]\n', encoding='utf-8')
    PATH.write_text(render(written()), encoding='utf-8')
    print(f'wrote {PATH}: {dict(Counter(fact["status"] for fact in written()))}')


if __name__ == '__main__':
    main()
