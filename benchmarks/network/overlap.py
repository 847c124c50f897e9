"""What overlap hides: an epoch of one rank, second by second, with and without prefetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Patch
from namespaces import Hosts
from plots import COLORS, panels, save
from program_team import ProgramTeam
from rank import NO_PREFETCH, PREFETCH, TIMELINE

GIGABITS = 1.0
"""Of every link, where rows travel about as long as a rank computes."""

_COMPUTING, _WAITING, _RECEIVED = COLORS[0], COLORS[3], COLORS[2]
_PHASES = {'forward': COLORS[1], 'backward': COLORS[4]}
_BIN_SECONDS = 0.02


def measure(
    team: ProgramTeam, hosts: Hosts, models: list[str], rounds: int
) -> list[dict[str, Any]]:
    """Of every model with and without prefetch rank 0 in the round of the median epoch."""
    found = []
    hosts.shape(GIGABITS)
    for model in models:
        names = [f'{model}/{variant}/{TIMELINE}' for variant in (PREFETCH, NO_PREFETCH)]
        for name in names:  # plans and caches
            team.step(name)
        epochs = [[team.step(name)[0] for name in names] for _ in range(rounds)]
        for name, of in zip(names, zip(*epochs, strict=True), strict=True):
            median = sorted(of, key=lambda epoch: epoch['seconds'])[len(of) // 2]
            found.append({'model': model, 'variant': name.split('/')[1], **median})
    return found


def shares(epoch: dict[str, Any]) -> tuple[float, float]:
    """Seconds of waiting, and which part of the bytes came while the rank computed."""
    waiting = np.array(epoch['waiting']).reshape(-1, 2)
    times, received = np.array([[0.0, 0.0], *epoch['received']]).T
    came = np.interp(waiting, times, received)
    beside = received[-1] - (came[:, 1] - came[:, 0]).sum()
    return float((waiting[:, 1] - waiting[:, 0]).sum()), float(beside / received[-1])


def draw(epochs: list[dict[str, Any]], path: Path) -> None:
    title = f'Rank 0 in an epoch, links of {GIGABITS:g} Gb/s'
    figure, axes = panels(len(epochs), title, columns=1)
    figure.set_size_inches(11, 2.3 * len(epochs) + 0.9)
    for axis, epoch in zip(axes, epochs, strict=True):
        waited, beside = shares(epoch)
        seconds = epoch['seconds']
        axis.broken_barh([(0, seconds)], (1.25, 0.4), color=_COMPUTING)
        spans = [(begin, end - begin) for begin, end in epoch['waiting']]
        axis.broken_barh(spans, (1.25, 0.4), color=_WAITING)
        times, received = np.array([[0.0, 0.0], *epoch['received']]).T
        bins = np.arange(0.0, seconds + _BIN_SECONDS, _BIN_SECONDS)
        rates = np.diff(np.interp(bins, times, received)) * 8e-9 / _BIN_SECONDS / GIGABITS
        axis.stairs(rates, bins, fill=True, color=_RECEIVED)
        longest = max(e['seconds'] for e in epochs if e['model'] == epoch['model'])
        for phase, begin, end in epoch['layers']:
            axis.plot([begin, end], [1.8, 1.8], color=_PHASES[phase], linewidth=3)
            if end - begin > longest / 20:  # others have no room
                axis.text((begin + end) / 2, 1.88, phase, fontsize=8, ha='center')
        axis.set_title(
            f'{epoch["model"]}, {epoch["variant"]}: {seconds:.2f} s, of which '
            f'{seconds - waited:.2f} computing and {waited:.2f} waiting; '
            f'{beside:.0%} of the bytes came beside computing',
            fontsize=10,
            loc='left',
        )
        axis.set_xlim(0, longest)
        axis.set_ylim(0, 2.2)
        axis.set_yticks([0, 0.5, 1], ['0', f'{GIGABITS / 2:g}', f'{GIGABITS:g} Gb/s'])
    axes[-1].set_xlabel('s')
    colors = {'computing': _COMPUTING, 'waiting': _WAITING, 'received': _RECEIVED}
    colors |= {f'{name} of a layer': color for name, color in _PHASES.items()}
    entries = [Patch(color=color, label=name) for name, color in colors.items()]
    place = 'outside lower center'
    figure.legend(handles=entries, loc=place, ncols=len(entries), frameon=False, fontsize=9)
    save(figure, path)


def write(epochs: list[dict[str, Any]], folder: Path) -> None:
    """``overlap.json`` and ``overlap.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'overlap.json').write_text(json.dumps(epochs) + '\n')
    draw(epochs, folder / 'overlap.png')
