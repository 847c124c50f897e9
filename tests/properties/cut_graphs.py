"""Cuts a drawn graph, and compares what comes of it with what was drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from drawn_graphs import Drawn
from drawn_values import same
from torch import Tensor

from pyg_sar import partition_graph


@contextmanager
def cut(drawn: Drawn) -> Iterator[Path]:
    """A partition folder of the graph, for as long as the context lasts."""
    with TemporaryDirectory() as folder:
        write(drawn, Path(folder) / 'parts')
        yield Path(folder) / 'parts'


def write(drawn: Drawn, root: Path) -> None:
    """Partitions the graph into the folder `root`."""
    method: Any = drawn.method
    if method == 'given':
        method = drawn.parts.get(None, drawn.parts)
    if method == 'file':
        file = root.parent / f'{root.name}.npy'
        np.save(file, torch.cat(list(drawn.parts.values())).to(torch.uint8).numpy())
        method = f'file:{file}'
    partition_graph(drawn.data, drawn.num_parts, root, method=method)


def check_rows(got: Tensor, ids: Tensor, want: Tensor, what: object) -> None:
    """Rows of a part or a rank are those of the whole graph, bit by bit."""
    assert same(got, want[ids]), what


def check_once(ids: list[Tensor], count: int) -> None:
    """Every id of the graph occurs exactly once."""
    assert torch.equal(torch.cat(ids).sort().values, torch.arange(count))
