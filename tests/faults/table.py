"""Writes docs/faults.md: what the other ranks see of every fault, from a run.

python tests/faults/table.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

if __name__ == '__main__':
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import cut_network
import path_cells
from fault_cells import CELLS, Cell, Outcome, bound, outcomes
from fault_program import FAULTS, FAULTY, GROUP_TIMEOUT, PHASES, TIMEOUT, WORLD_SIZE
from network_cells import network_outcomes, why_no_networks
from path_cells import End, PathCell
from path_outcomes import CELLS as PATH_CELLS
from path_outcomes import MOMENTS, PLACES, check, path_outcomes

PATH = Path(__file__).parents[2] / 'docs' / 'faults.md'
TEXT = Path(__file__).parent / 'page.md'


def render(
    phases: dict[Cell, Outcome], paths: dict[PathCell, list[End]], networks: list[dict[str, Any]]
) -> str:
    """The page."""
    return TEXT.read_text(encoding='utf-8').format(
        world=WORLD_SIZE,
        faulty=FAULTY,
        timeout=TIMEOUT,
        group=GROUP_TIMEOUT,
        short=path_cells.TIMEOUT,
        cut=cut_network.TIMEOUT,
        phases='\n'.join(_phase_rows(phases)),
        texts='\n'.join(_texts(phases)),
        paths='\n'.join(_path_rows(paths)),
        networks='\n'.join(_network_rows(networks)) or f'Not run: {why_no_networks()}.',
    )


def _phase_rows(found: dict[Cell, Outcome]) -> list[str]:
    lines = ['| fault | ' + ' | '.join(PHASES) + ' |', '|---' * (len(PHASES) + 1) + '|']
    for fault in FAULTS:
        cells = [_phase(Cell(fault, phase), found.get(Cell(fault, phase))) for phase in PHASES]
        lines.append(f'| {fault} | ' + ' | '.join(cells) + ' |')
    return lines


def _phase(cell: Cell, outcome: Outcome | None) -> str:
    if outcome is None:
        return ''
    kinds = {end.get('type', 'no error') for end in outcome.ends} - {'ExchangeError'}
    text = f'{outcome.seconds:.1f}' + ''.join(f' *{kind}*' for kind in sorted(kinds))
    names_it = all(f'rank {FAULTY}' in end.get('text', '') for end in outcome.ends)
    is_right = outcome.exit_codes == [1, 1] and outcome.seconds < bound(cell) and names_it
    return text if is_right else f'**{text}**'


def _short(text: str) -> str:
    """A message without numbers of ports and names of files."""
    reason, rank, where = ' '.join(text.split()).partition('; rank ')
    reason = reason.split('[')[0].split(' (')[0].rstrip(' :')
    return reason + rank + where.split(', called at')[0]


def _texts(found: dict[Cell, Outcome]) -> list[str]:
    """A line for every message, with the faults and phases that end so."""
    cells_by_text: dict[str, list[str]] = {}
    for cell, outcome in found.items():
        if cell.phase in ('forward', 'backward'):
            text = _short(outcome.ends[0].get('text', ''))
            cells_by_text.setdefault(text, []).append(f'{cell.fault}, {cell.phase}')
    return [f'- {"; ".join(cells)}: `{text}`' for text, cells in cells_by_text.items()]


def _path_rows(found: dict[PathCell, list[End]]) -> list[str]:
    heads = ('killed at the first', 'killed at the last', 'stopped in the middle')
    lines = [f'| what communicates | mode | phase | {" | ".join(heads)} |', '|---' * 6 + '|']
    for place in PLACES:
        name, mode, phase = place
        cells = [PathCell(*place, *moment) for moment in MOMENTS]
        texts = [_path(cell, found[cell]) for cell in cells]
        lines.append(f'| {name} | {mode} | {phase or "call"} | {" | ".join(texts)} |')
    return lines


def _path(cell: PathCell, ends: list[End]) -> str:
    text = f'{max(end.seconds for end in ends):.1f}'
    try:
        check(cell, ends)
    except AssertionError:
        return f'**{text}**'
    return text


def _network_rows(found: list[dict[str, Any]]) -> list[str]:
    if not found:
        return []
    lines = ['| cut off | met by | rank | the others end after | with |', '|---' * 5 + '|']
    for (how, store, faulty), outcome in zip(cut_network.CASES, found, strict=True):
        others = [end for rank, end in enumerate(outcome['ends']) if rank != faulty]
        seconds, said = max(end['seconds'] for end in others), _short(others[0]['text'])
        lines.append(f'| {how} | {store} | {faulty} | {seconds:.1f} | `{said}` |')
    return lines


def main() -> None:
    """Runs all cells and writes the page."""
    with tempfile.TemporaryDirectory() as folder:
        phases = Path(folder) / 'phases'
        phases.mkdir()
        found = outcomes(CELLS, phases, at_once=4)
        of_paths = path_outcomes(PATH_CELLS, Path(folder) / 'paths')
        of_networks = [] if why_no_networks() else network_outcomes(Path(folder) / 'networks')
    PATH.write_text(render(found, of_paths, of_networks), encoding='utf-8')
    print(f'wrote {PATH}')


if __name__ == '__main__':
    main()
