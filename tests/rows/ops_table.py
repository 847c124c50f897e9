"""Writes docs/ops.md: what becomes of every function of torch with rows, from a run of all cases.

python tests/rows/ops_table.py
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import torch
from op_outcomes import Outcome, names, outcome_of
from op_run import NUM_RANKS
from torch.overrides import get_overridable_functions

from pyg_sar.rows import registry

PATH = Path(__file__).parents[2] / 'docs' / 'ops.md'

_NOT_RUN = (
    'cuda pin_memory dsmm spmm iadd idiv ifloordiv imod imul isub mod radd rand rmul ror rxor '
    'truediv'
)
NOT_RUN = frozenset(_NOT_RUN.split())
"""Functions with a rule that no case reaches: operators, which torch calls by other names, and
what needs a device or sparse tensors."""

_FAMILIES = {
    'pointwise': 'Number by number',
    'reduce': 'Reductions',
    'rowwise': 'Row by row, along other dimensions',
    'softmax': 'Softmax and norms of vectors',
    'places': 'Counts, look-ups and order',
    'products': 'Products',
    'losses': 'Losses',
    'layers': 'Layers',
    'attention': 'Attention',
    'dimensions': 'Dimensions',
    'shapes': 'Shapes',
    'select': 'Selections',
    'index': 'Assignments',
    'group': 'Groups',
    'composed': 'Made of others',
    'reads': 'Read, or not known',
}

_INTRO = """\
# Every function of torch on rows

What functions of torch give on [rows](rows.md). `make ops` writes this page: it runs torch's own
sample inputs of every function of torch {version}, and cases by hand for functions without samples,
on {num_ranks} ranks with uneven parts. Results and gradients are compared with those of one
process, in float64. Of random numbers only the kind of the result is compared.

| | functions | meaning |
|---|---|---|
| *everywhere* | {num_right} | right in all calls, whichever dimension the rows are |
| *in part* | {num_in_part} | right with rows in the dimensions in brackets, refused elsewhere |
| *refused* | {num_refused} | a ValueError says what to do instead |

None is wrong. Calls that would need all rows in one place are refused, too.

"""

_OUTRO = """\
## Functions without a run

- *without rows*: no tensors among the arguments, or sparse ones: {no_rows}.
- *what is read*: shapes are those of the whole; of the others nothing is computed: {reads}.
- *known by other names*, or with a device or sparse tensors: {not_run}.
- *refused by name*, as no rule is known for them: {unknown}.
"""


def told_of(outcome: Outcome) -> str:
    """What the page says of a function."""
    if outcome.status == 'by dimension':
        right = sorted(dim for dim, counts in outcome.by_dim.items() if counts['right'])
        return f'in part: {", ".join(map(str, right))}'
    return {'right': 'everywhere'}.get(outcome.status, outcome.status)


def told(page: str) -> dict[str, str]:
    """What a page says, by the name of the function."""
    found = {}
    for line in page.splitlines():
        kind, _, functions = line.partition(': ')
        if not kind.startswith('- *') or '`' not in functions:
            continue
        for name, dims in re.findall(r'`([^`]+)`(?: \(([0-9, ]+)\))?', functions):
            kind_of = kind.strip('- *')
            what = f'in part: {dims}' if dims else kind_of.replace('without rows', 'no rows')
            found.setdefault(name, what)
    return found


def render(found: Iterable[Outcome], before: dict[str, list[str]]) -> str:
    """The page; `before` are the kinds before any case ran, as some cases take functions away."""
    outcomes = sorted(found, key=lambda outcome: outcome.name.lower())
    by_family: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_family[family_of(outcome)].append(outcome)
    counts = {
        kind: sum(o.status == kind for o in outcomes)
        for kind in ('right', 'by dimension', 'refused')
    }
    parts = [
        _INTRO.format(
            version=torch.__version__.partition('+')[0],
            num_ranks=NUM_RANKS,
            num_right=counts['right'],
            num_in_part=counts['by dimension'],
            num_refused=counts['refused'],
        )
    ]
    for family, title in _FAMILIES.items():
        lines = _lines(by_family[family])
        if lines:
            parts.append(f'## {title}\n\n' + '\n'.join(lines) + '\n\n')
    reached = {name for outcome in outcomes for name in outcome.reached}
    kinds = kinds_of_others(reached)
    parts.append(
        _OUTRO.format(
            no_rows=_listed(o.name for o in outcomes if o.status == 'no rows'),
            reads=_listed(before['reads']),
            not_run=_listed(kinds['not run']),
            unknown=_listed(before['unknown']),
        )
    )
    return ''.join(parts)


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


def _lines(outcomes: list[Outcome]) -> list[str]:
    right, in_part, refused, failing = [], [], [], []
    for outcome in outcomes:
        if outcome.status == 'right':
            right.append(f'`{outcome.name}`')
        elif outcome.status == 'by dimension':
            in_part.append(f'`{outcome.name}` ({told_of(outcome).partition(": ")[2]})')
        elif outcome.status == 'refused':
            refused.append(f'`{outcome.name}`')
        elif outcome.status == 'fails':
            failing.append(f'`{outcome.name}`')
    kinds = {'everywhere': right, 'in part': in_part, 'refused': refused, 'fails': failing}
    return [f'- *{kind}*: ' + ', '.join(each) for kind, each in kinds.items() if each]


def kinds_of_others(reached: set[str]) -> dict[str, list[str]]:
    """What torch lets a class override and no run has reached, by the kind of its rule."""
    kinds: dict[str, set[str]] = {'reads': set(), 'not run': set(), 'unknown': set()}
    for functions in get_overridable_functions().values():
        for function in functions:
            name = registry.bare_name(function)
            rule = registry.rule_of(function)
            if rule.__name__ == '_unknown':
                kinds['unknown'].add(name)
            elif rule.__module__.endswith('.reads') or rule.__name__ == 'read':
                kinds['reads'].add(name)
            elif name not in reached:
                kinds['not run'].add(name)
    return {kind: sorted(each) for kind, each in kinds.items()}


def _listed(functions: Iterable[str]) -> str:
    return ', '.join(f'`{name}`' for name in functions)


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
    PATH.write_text(render(found, before), encoding='utf-8')
    print(f'wrote {PATH}')


if __name__ == '__main__':
    main()
