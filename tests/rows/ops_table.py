"""Writes docs/ops.md and ops_table.json: what becomes of every function of torch with rows.

python tests/rows/ops_table.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch
from op_outcomes import Outcome, names, outcome_of
from op_run import NUM_RANKS
from torch.overrides import get_overridable_functions

from pyg_sar.rows import registry
from pyg_sar.rows.registry import names as words

PATH = Path(__file__).parents[2] / 'docs' / 'ops.md'
FACTS = Path(__file__).with_suffix('.json')

Facts = dict[str, Any]
"""What became of all functions: see ops_table.json."""

NOT_RUN = words(
    'cuda pin_memory dsmm spmm iadd idiv ifloordiv imod imul isub mod radd rand rmul ror rxor '
    'truediv'
)
"""Functions with a rule that no case reaches: operators, which torch calls by other names, and
what needs a device or sparse tensors."""

_FAMILIES = {
    'pointwise': 'Number by number',
    'reduce': 'Reductions',
    'rowwise': 'Row by row, along other dimensions',
    'softmax': 'Softmax and norms of vectors',
    'places': 'Counts, look-ups and order',
    'products': 'Products',
    'diagonal': 'Products',
    'losses': 'Losses',
    'layers': 'Layers',
    'attention': 'Attention',
    'dimensions': 'Dimensions',
    'shapes': 'Shapes',
    'select': 'Selections',
    'index': 'Assignments',
    'group': 'Groups',
    'composed': 'Made of others',
    'backward': 'Read, or not known',
    'reads': 'Read, or not known',
}

_PAGE = """\
# Every function of torch on rows

What functions of torch give on [rows](rows.md). `make ops` runs torch's own sample inputs of every
function of torch {version}, and cases by hand for functions without samples, on {num_ranks} ranks
with uneven parts. Results and gradients are compared with those of one process, in float64. Of
random numbers only the kind of the result is compared. None is wrong.

| | functions | meaning |
|---|---|---|
| *everywhere* | {num_everywhere} | right in all calls, whichever dimension the rows are |
| *in part* | {num_in_part} | right with rows in some dimensions, refused elsewhere |
| *refused* | {num_refused} | a ValueError says what to do instead |
| *refused by name* | {num_unknown} | no rule is known for them, and no case was run |
| *read* | {num_reads} | shapes are those of the whole; of others nothing is computed |

All names by kind, with the dimensions: `tests/rows/ops_table.json`. A call that needs all rows in
one place gathers them on every rank.

## Refused

{refused}.
"""


def told_of(outcome: Outcome) -> str:
    """What the page says of a function."""
    if outcome.status == 'by dimension':
        right = sorted(dim for dim, counts in outcome.by_dim.items() if counts['right'])
        return f'in part: {", ".join(map(str, right))}'
    return {'right': 'everywhere'}.get(outcome.status, outcome.status)


def told(facts: Facts) -> dict[str, str]:
    """What is said of a function, by its name."""
    found: dict[str, str] = {}
    for kinds in facts['kinds'].values():
        for name in kinds['everywhere']:
            found.setdefault(name, 'everywhere')
        for name, dims in kinds['in part'].items():
            found.setdefault(name, f'in part: {dims}')
        for kind in ('refused', 'fails'):
            found |= {name: kind for name in kinds.get(kind, []) if name not in found}
    for kind in ('no rows', 'read', 'by other names', 'refused by name'):
        found |= {name: kind for name in facts[kind] if name not in found}
    return found


def facts_of(found: Iterable[Outcome], before: dict[str, list[str]]) -> Facts:
    """All facts; `before` are the kinds before any case ran, as some cases take functions away."""
    outcomes = sorted(found, key=lambda outcome: outcome.name.lower())
    kinds: dict[str, Facts] = {title: {} for title in _FAMILIES.values()}
    for outcome in outcomes:
        of = kinds[_FAMILIES[family_of(outcome)]]
        if outcome.status == 'by dimension':
            of.setdefault('in part', {})[outcome.name] = told_of(outcome).partition(': ')[2]
        elif outcome.status != 'no rows':
            of.setdefault(told_of(outcome), []).append(outcome.name)
    others = kinds_of_others({name for outcome in outcomes for name in outcome.reached})
    return {
        'torch': torch.__version__.partition('+')[0],
        'kinds': {
            title: {'everywhere': [], 'in part': {}, 'refused': [], **of}
            for title, of in kinds.items()
            if of
        },
        'no rows': [outcome.name for outcome in outcomes if outcome.status == 'no rows'],
        'read': before['reads'],
        'by other names': others['not run'],
        'refused by name': before['unknown'],
    }


def render(facts: Facts) -> str:
    """The page."""
    kinds = facts['kinds'].values()
    everywhere, in_part = (sum(len(of[kind]) for of in kinds) for kind in ('everywhere', 'in part'))
    names = [name for of in kinds for name in of['refused']]
    return _PAGE.format(
        version=facts['torch'],
        num_ranks=NUM_RANKS,
        num_everywhere=everywhere,
        num_in_part=in_part,
        num_refused=len(names),
        num_unknown=len(facts['refused by name']),
        num_reads=len(facts['read']),
        refused=', '.join(f'`{name}`' for name in names),
    )


def written() -> Facts:
    """What ops_table.json has."""
    facts: Facts = json.loads(FACTS.read_text(encoding='utf-8'))
    return facts


def family_of(outcome: Outcome) -> str:
    """The file of the rule of a function; of one with another name, of what it calls."""
    name = outcome.name.removeprefix('nn.functional.').removeprefix('operator ')
    known = outcome.family_by_function
    if outcome.families in ([], ['reads']) or len(outcome.families) == 1:
        return (outcome.families or ['reads'])[0]
    if name.startswith('masked.'):
        return 'composed'
    others = [each for each in outcome.families if each != 'reads']
    return known.get(name.replace('.', '_').strip('_'), others[-1])


def kinds_of_others(reached: set[str]) -> dict[str, list[str]]:
    """What torch lets a class override and no run has reached, by the kind of its rule."""
    kinds: dict[str, set[str]] = {'reads': set(), 'not run': set(), 'unknown': set()}
    for functions in get_overridable_functions().values():
        for function in functions:
            name = registry.bare_name(function)
            rule = registry.rule_of(function)
            if rule.__name__ == '_unknown':
                kinds['unknown'].add(name)
            elif rule.__module__.endswith(('.reads', '.backward')) or rule.__name__ == 'read':
                kinds['reads'].add(name)
            elif name not in reached:
                kinds['not run'].add(name)
    return {kind: sorted(each) for kind, each in kinds.items()}


def main() -> None:
    """Runs all cases and writes the page."""
    before = kinds_of_others(set())
    found = [outcome_of(name) for name in names()]
    reached = {name for outcome in found for name in outcome.reached}
    not_run = set(kinds_of_others(reached)['not run'])
    for outcome in found:
        for failure in outcome.failures:
            print(f'{outcome.name}: {failure}')
    if not_run != NOT_RUN:
        print(f'with a rule and without a case: {sorted(not_run ^ NOT_RUN)}')
    facts = facts_of(found, before)
    FACTS.write_text(json.dumps(facts, indent=1) + '\n', encoding='utf-8')
    PATH.write_text(render(facts), encoding='utf-8')
    print(f'wrote {PATH}')


if __name__ == '__main__':
    main()
