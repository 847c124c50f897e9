"""What is damaged: partitions, files of graphs and checkpoints, each with its reader."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hetero_graphs import assignment, hetero_graph
from mutations import Folder
from small_graphs import assign, small_graph
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import SAGEConv
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.files import read_saved
from pyg_sar.rows.from_data import as_rows_of_graph
from pyg_sar.shard.blocks import plan_of
from pyg_sar.shard.edges import LocalEdges
from pyg_sar.shard.files import folder_checksums
from pyg_sar.shard.meta import signed
from pyg_sar.shard.read_shard import read_shard

LAYOUTS = ((0, 2), (1, 2), (0, 2), (1, 2), (0, 1))
"""Ranks and numbers of ranks, as often as they are drawn."""


class Target:
    """A folder and what reads it.

    Attributes:
        expected: What a reader gives, in comparable form; None if nothing guards its content.
        odd_names: The files that may be replaced by what is no file.
    """

    expected: Any = None

    def __init__(self, root: Path, files: dict[str, bytes], other: dict[str, bytes]) -> None:
        self.root = root
        self.folder = Folder(root, files, other)
        self.names = sorted(files)
        self.odd_names = self.names

    def load(self, rng: random.Random) -> Any:
        """Reads it."""
        raise NotImplementedError

    def is_right(self, found: Any) -> bool:
        """Whether that is what was written."""
        raise NotImplementedError

    def use(self, found: Any, rng: random.Random) -> None:
        """Works with what was loaded, as training does."""

    def forge(self, folder: Folder) -> None:
        """Makes checksums right again."""


class Shards(Target):
    """A partition of ours."""

    def __init__(self, root: Path, files: dict[str, bytes], other: dict[str, bytes]) -> None:
        super().__init__(root, files, other)
        # Files that training never opens are few of the cases.
        read = [n for n in self.names if 'map' not in n]
        self.names = read * 6 + self.names + ['META.json'] * 12
        self.expected = [_comparable(read_shard(root, *layout)) for layout in LAYOUTS]

    def load(self, rng: random.Random) -> Any:
        if rng.random() < 0.01:
            verify_partition(self.root)
        layout = rng.choice(LAYOUTS)
        return LAYOUTS.index(layout), read_shard(self.root, *layout)

    def is_right(self, found: Any) -> bool:
        number, data = found
        return _same(_comparable(data), self.expected[number])

    def use(self, found: Any, rng: random.Random) -> None:
        _use(found[1], rng)

    def forge(self, folder: Folder) -> None:
        try:
            content = json.loads(folder.read('META.json'))
            if any(not (folder.root / name).is_file() for name in folder.touched):
                return
            if any((folder.root / name).stat().st_size > 1 << 24 for name in folder.touched):
                return
            content['pyg_sar']['checksums'] = folder_checksums(folder.root)
            folder.write('META.json', signed(content).encode())
        except (ValueError, TypeError, KeyError, RecursionError, OSError):
            return


def _cut(root: Path, graph: Data | HeteroData, methods: list[Any]) -> Shards:
    files = []
    for number, method in enumerate(methods):
        made = root.with_name(f'{root.name}-{number}')
        pyg_sar.partition_graph(graph, 2, made, method=method)
        files.append(_files(made))
    return Shards(root, *files)


def _homogeneous(root: Path) -> Target:
    graph = small_graph()
    del graph.pos, graph.edge_type, graph.edge_attr
    return _cut(
        root, graph, [assign(graph.num_nodes, 2, kind) for kind in ('uneven', 'one reader')]
    )


def _heterogeneous(root: Path) -> Target:
    methods = [
        {key: (part + number) % 2 for key, part in assignment(2).items()} for number in range(2)
    ]
    return _cut(root, hetero_graph(), methods)


class Sources(Target):
    """Files that are to be partitioned."""

    @staticmethod
    def make(root: Path) -> Sources:
        graph = small_graph()
        arrays = {
            'edge_index': graph.edge_index.numpy(),
            'x_data': np.ones(3, np.float32),
            'x_indices': np.array([0, 1, 2]),
            'x_indptr': np.array([0, 3] + [3] * 39),
            'x_shape': np.array([40, 5]),
            'y': graph.y.numpy(),
            'train_idx': np.arange(9),
        }
        files = []
        for content, save in ((graph, np.savez), (graph.to_dict(), np.savez_compressed)):
            saved, packed = io.BytesIO(), io.BytesIO()
            torch.save(content, saved)
            save(packed, **arrays)
            files.append({'graph.pt': saved.getvalue(), 'graph.npz': packed.getvalue()})
        return Sources(root, *files)

    def load(self, rng: random.Random) -> Any:
        # The damage is in one of them; the other one is read without an error.
        is_mapped = rng.random() < 0.5
        read_saved(self.root / 'graph.pt', is_mapped=is_mapped)
        return load_source(self.root / 'graph.npz', scratch=Scratch() if is_mapped else None)


class Checkpoints(Target):
    """A folder of checkpoints."""

    @staticmethod
    def make(root: Path) -> Checkpoints:
        made = []
        for number in range(2):
            model, optimizer = _model(number + 2)
            folder = root.with_name(f'checkpoints-{number}')
            pyg_sar.save_checkpoint(folder, model, optimizer, epoch=1)
            made.append(_files(folder))
        return Checkpoints(root, *made)

    def load(self, rng: random.Random) -> Any:
        return pyg_sar.load_checkpoint(self.root, *_model(2))


def _model(hidden: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, hidden)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def _files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


def _comparable(data: Data | HeteroData) -> Any:
    out = []
    for store in data.stores:
        for name, value in store.items():
            if isinstance(value, LocalEdges):
                ids, shard = value.handle.ids, value.handle.shard
                steps = [(s.recv_rows, s.send_index.clone()) for s in shard.steps]
                out += [(name, ids.clone()), (name, shard.halo_ptr)]
                out += [(name, *step) for step in steps]
            else:
                out.append((name, value.clone() if isinstance(value, Tensor) else value))
    return out


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def _use(data: Data | HeteroData, rng: random.Random) -> None:
    """What convs do with it: kernels over every block, with rows as they would be received."""
    for store in data.stores:
        if 'edge_index' not in store:
            continue
        plan = plan_of(store.edge_index.handle)
        for block in plan.blocks:
            rows = torch.ones(block.num_rows, 2)
            by_dst, by_src = block.by_dst, block.by_src
            _sum(rows, by_dst)
            _sum(torch.ones(block.num_dst, 2), by_src)
        for step in plan.shard.steps:
            torch.ones(plan.shard.num_own, 2)[step.send_index]
        assert store['e_id'].dtype == torch.int64
    shard = data.edge_index.handle.shard if isinstance(data, Data) else None
    if shard is not None and shard.world_size == 1 and rng.random() < 0.2:
        conv = pyg_sar.SARConv(SAGEConv(3, 2))
        edge_index = as_rows_of_graph(data).edge_index
        conv(torch.ones(shard.num_own, 3), edge_index).sum().backward()


def _sum(rows: Tensor, segments: Any) -> None:
    """Out of range entries are errors, and in kernels that do not look reads of other memory."""
    columns = segments.columns.long()
    if columns.numel():
        low, high = (int(value) for value in columns.aminmax())
        if low < 0 or high >= rows.size(0) or int(segments.ptr[-1]) != columns.numel():
            raise AssertionError(f'columns {low} to {high} of {rows.size(0)} rows')


TARGETS: dict[str, tuple[float, Callable[[Path], Target]]] = {
    'shard': (4.0, _homogeneous),
    'hetero shard': (1.0, _heterogeneous),
    'source': (1.0, Sources.make),
    'checkpoint': (0.5, Checkpoints.make),
}
"""What is damaged, and its share of the cases."""
