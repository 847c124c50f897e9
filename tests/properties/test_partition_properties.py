"""Whatever the graph: the same graph gives the same bytes, from memory and from a file.

With PYG_SAR_EXAMPLES=2000 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from cut_graphs import write
from drawn_graphs import Drawn, examples, graphs
from hypothesis import given

pytestmark = pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')


def _content(root: Path) -> dict[Path, bytes]:
    files = (path for path in root.rglob('*') if path.is_file())
    return {path.relative_to(root): path.read_bytes() for path in files}


def _check_bytes(drawn: Drawn) -> None:
    """The same graph twice, and from a file, whose tensors stay on disk."""
    # META.json names the file that parts come from, and each run here has one of its own.
    drawn.method = 'given' if drawn.method == 'file' else drawn.method
    # A file is read as a dict, from which PyG makes x, y and others first.
    drawn.data = type(drawn.data).from_dict(drawn.data.to_dict())
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(drawn, folder / 'a')
        write(drawn, folder / 'b')
        torch.save(drawn.data, folder / 'graph.pt')
        drawn.data = folder / 'graph.pt'
        write(drawn, folder / 'c')
        first = _content(folder / 'a')
        assert first == _content(folder / 'b')
        assert first == _content(folder / 'c')


@examples(8)
@given(graphs())
def test_same_seed_same_bytes(drawn):
    _check_bytes(drawn)
