"""The names that nodes had in the files of a graph."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from pyg_sar.utils.installed import reader

_BATCH = 1 << 20
"""Names that lie together in the file."""


class NodeNames:
    """The name of every node of the whole graph, in the order of ids: text, integers or bytes.

    All ranks have all of them, in one file that is mapped into memory. PyG would make a list of
    what is a Sequence (``data.to(device)``), which this is not. Example::

        data.node_names[17]  # of one node
        data.node_names[out[:, 0].topk(5).indices]  # a list of five
        pyg_sar.gather(data.node_names)  # a list of all

    Without this library ``pyarrow.ipc.open_file('parts/node_names.arrow').read_all()`` has them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeNames, (self.path,)

    def arrow(self) -> Any:
        """The names as pyarrow's ChunkedArray, of which pages are read that are used."""
        if self._names is None:
            pyarrow = reader('pyarrow', self.path)
            try:
                content = pyarrow.memory_map(str(self.path))
                self._names = pyarrow.ipc.open_file(content).read_all().column(0)
            except (pyarrow.ArrowInvalid, IndexError) as error:
                raise ValueError(f"expected names in '{self.path}' (got: {error})") from error
        return self._names

    def __len__(self) -> int:
        return len(self.arrow())

    def __iter__(self) -> Iterator[Any]:
        return (name.as_py() for name in self.arrow())

    def __getitem__(self, index: Any) -> Any:
        """The name of an id; a list of those of a slice, of a list, or of an integer tensor [n]."""
        names = self.arrow()
        if isinstance(index, slice):
            start, stop, step = index.indices(len(names))
            run = names.slice(start, max(stop - start, 0)) if step > 0 else names
            return run.to_pylist()[::step] if step > 0 else names.to_pylist()[index]
        if isinstance(index, Tensor) and index.dim() == 0:
            index = index.item()
        if isinstance(index, (Tensor, list)):
            return [self[int(at)] for at in index]
        at = operator.index(index)
        if not -len(names) <= at < len(names):
            raise IndexError(f'expected an id below {len(names)} (got {at})')
        return names[at].as_py()

    def __repr__(self) -> str:
        return f"NodeNames('{self.path}')"


def write_node_names(path: Path, names: Any) -> None:
    """Writes names, pyarrow's Array or ChunkedArray [N], as an Arrow file."""
    pyarrow = import_module('pyarrow')
    path.parent.mkdir(exist_ok=True)
    table = pyarrow.table({'name': names})
    with (
        pyarrow.OSFile(str(path), 'wb') as file,
        pyarrow.ipc.new_file(file, table.schema) as writer,
    ):
        writer.write_table(table, max_chunksize=_BATCH)
