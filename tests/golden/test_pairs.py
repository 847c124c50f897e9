"""Options together: every pair of their values, and the losses of one process without any."""

from __future__ import annotations

from itertools import product

import pytest
from alike import cut_of
from golden_runs import RUNS, trained
from pairs import pairs
from ranks import run_ranks
from small_graphs import small_graph

MODES = [*product(('sequential', 'sequential_no_remat'), (True, False)), ('one_shot', True)]
"""Each with `partial_sums`, which one_shot does not take."""


@pairs(conv=('SAGE', 'GAT', 'PNA', 'Transformer'), world_size=(3, 1), steps=(1, 2), how=MODES)
def test_options_together(conv: str, world_size: int, steps: int, how: tuple[str, bool]) -> None:
    root = cut_of(small_graph, 3)
    run = RUNS[conv]._replace(steps=steps, options={'dropout_seed': 5})
    (control,) = run_ranks(trained, 1, root, run)
    options = {**run.options, 'mode': how[0], 'partial_sums': how[1]}
    for found in run_ranks(trained, world_size, root, run._replace(options=options)):
        assert found == pytest.approx(control, rel=1e-10)
