"""Writes docs/faults.md: what the other ranks see of every fault in every phase, from a run.

python tests/faults/table.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from fault_cells import CELLS, Cell, Outcome, bound, outcomes
from fault_program import FAULTS, FAULTY, GROUP_TIMEOUT, PHASES, TIMEOUT, WORLD_SIZE

PATH = Path(__file__).parents[2] / 'docs' / 'faults.md'

_INTRO = """\
# When a rank fails

What the other ranks see when one of them fails. `make faults` wrote this page: {world} ranks (gloo)
train three layers; rank {faulty} fails in the phase of the column, and the two others are watched.
The exchanges have `timeout={timeout:g}`, the default group {group:g} s, which holds until the model
is constructed.

A cell tells the seconds from the fault to the last exception of the others. It is
`pyg_sar.ExchangeError` unless the cell says *ValueError*, and it names the lost rank, the layer,
forward or backward, and the operation with its block. All others end with an exit code that is not
0, and no process is left. **Bold** marks what took longer than it should have, or said less.

- A process that **ends** (killed, an exception that nobody catches, out of memory) or is **cut
  off** breaks its connections: the others end within 5 s.
- A process that is **stopped** is silent: the others end at the timeout.
- **raises, lives on**: an exception leaves the model and is caught. In forward the rank ends its
  exchanges itself, after 2 s in which the others may raise as well: what all raise at the same
  point leaves them able to go on. Outside of forward and of the backward of layers (an optimizer, a
  hook) nobody sees it, so the rank is silent as long as it lives.
- **cut off**: every connection of the process is shut down. A cable that is pulled without a word
  is the silence of a stopped process.
- **shape**: it loads another partition, has another model, or gets too many rows.

"""


def render(found: dict[Cell, Outcome]) -> str:
    """The page."""
    intro = _INTRO.format(world=WORLD_SIZE, faulty=FAULTY, timeout=TIMEOUT, group=GROUP_TIMEOUT)
    lines = ['| fault | ' + ' | '.join(PHASES) + ' |', '|---' * (len(PHASES) + 1) + '|']
    for fault in FAULTS:
        cells = [_cell(Cell(fault, phase), found.get(Cell(fault, phase))) for phase in PHASES]
        lines.append(f'| {fault} | ' + ' | '.join(cells) + ' |')
    lines += ['', '## What they say', '']
    for cell, outcome in found.items():
        if cell.phase in ('forward', 'backward'):
            text = ' '.join(outcome.ends[0].get('text', '').split('[')[0].split())
            lines.append(f'- {cell.fault}, {cell.phase}: `{text.rstrip(" (:")}`')
    return intro + '\n'.join(lines) + '\n'


def _cell(cell: Cell, outcome: Outcome | None) -> str:
    if outcome is None:
        return ''
    kinds = {end.get('type', 'no error') for end in outcome.ends} - {'ExchangeError'}
    text = f'{outcome.seconds:.1f}' + ''.join(f' *{kind}*' for kind in sorted(kinds))
    names_it = all(f'rank {FAULTY}' in end.get('text', '') for end in outcome.ends)
    is_right = outcome.exit_codes == [1, 1] and outcome.seconds < bound(cell) and names_it
    return text if is_right else f'**{text}**'


def main() -> None:
    """Runs all cells and writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        found = outcomes(CELLS, Path(folder), at_once=6)
    PATH.write_text(render(found), encoding='utf-8')
    print(f'wrote {PATH}')


if __name__ == '__main__':
    main()
