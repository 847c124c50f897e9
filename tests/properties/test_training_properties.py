"""Whatever the graph: a step of training on several ranks is that of plain PyG on one process.

Graphs are drawn first and sent to the ranks together, as a call of the ranks costs. With
PYG_SAR_EXAMPLES=200 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cut_graphs import write
from drawn_graphs import Drawn, examples, heterogeneous, homogeneous
from few import few
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from step_of_training import on_ranks, whole

pytestmark = pytest.mark.filterwarnings('ignore:There exist node types')  # PyG's

MODES = ['sequential', 'sequential_no_remat', 'one_shot']
TOLERANCE = 1e-10


def _drawn(strategy: st.SearchStrategy[Drawn], few: int) -> list[tuple[Drawn, str]]:
    found: list[tuple[Drawn, str]] = []

    @examples(few)
    @given(strategy, st.sampled_from(MODES))
    def collect(drawn: Drawn, mode: str) -> None:
        found.append((drawn, mode))

    collect()
    return found


def _check(want: dict[str, Any], found: list[dict[str, Any]], what: object) -> None:
    for name, values in want.items():
        for key, value in values.items():
            message = f'{name} {key} of {what}'
            for rank in found:
                torch.testing.assert_close(
                    rank[name][key],
                    value,
                    rtol=TOLERANCE,
                    atol=TOLERANCE,
                    msg=lambda m, w=message: f'{w}: {m}',
                )


def _check_training(
    strategy: st.SearchStrategy[Drawn], world_size: int, few: int, folder: Path
) -> None:
    drawn = _drawn(strategy, few)
    cases = []
    for i, (graph, mode) in enumerate(drawn):
        write(graph, folder / f'{i}')
        cases.append((str(folder / f'{i}'), mode))
    results = run_ranks(on_ranks, world_size, cases, timeout=60 + len(cases))
    for i, (graph, mode) in enumerate(drawn):
        _check(whole(graph), [rank[i] for rank in results], (mode, graph))


@pytest.mark.parametrize('world_size', few([3, 2]))
def test_a_step_on_a_homogeneous_graph(tmp_path, world_size):
    _check_training(homogeneous(tame=True, ranks=world_size), world_size, 8, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('world_size', [2])
def test_a_step_on_a_heterogeneous_graph(tmp_path, world_size):
    _check_training(heterogeneous(tame=True, ranks=world_size), world_size, 6, tmp_path)


@pytest.mark.bench
@pytest.mark.parametrize('world_size', [2, 3])
@pytest.mark.parametrize('graphs', [homogeneous, heterogeneous])
def test_a_step_on_many_graphs(tmp_path, graphs, world_size):
    _check_training(graphs(tame=True, ranks=world_size), world_size, 12, tmp_path)
