"""Attention over all nodes and models of meshes, on cuts that other programs do not have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from few import few

import pyg_sar

sys.path.append(str(Path(__file__).parents[1] / 'programs'))

from one_program import all_programs, on_whole_graph
from program_graphs import graph, parts_of
from run_programs import RIGHT, cut_run

PROGRAMS = {
    name: program
    for name, program in all_programs().items()
    if name.startswith(('attention.', 'mesh.'))
}
CUTS = {'four ranks': (4, 4), 'a rank without nodes': (3, 3), 'two parts a rank': (2, 4)}


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp('attention')
    for cut, (_, num_parts) in CUTS.items():
        parts = parts_of(graph(), num_parts)
        if cut == 'a rank without nodes':
            parts[parts == 1] = 2
        pyg_sar.partition_graph(graph(), num_parts, root / cut, method=parts)
    return root


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('cut', CUTS)
@pytest.mark.parametrize('name', few(PROGRAMS))
def test_a_program(name: str, cut: str, folder: Path) -> None:
    want = on_whole_graph(PROGRAMS[name], graph())
    assert cut_run(name, want, CUTS[cut][0], str(folder / cut), 120) == (RIGHT, '')
