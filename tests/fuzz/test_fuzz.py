"""Damaged folders and files end in an error that names them, or in what was written.

Where checksums were forged as well, what is loaded may be other data that kernels can work with. No
code of a file runs, no case takes long or much memory. PYG_SAR_EXAMPLES=100000 in the environment
draws that many cases, others in every run.
"""

from __future__ import annotations

import io
import json
import os
import random
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import NOT_FILES, damaged_bytes, damaged_structure, hostile
from hetero_graphs import assignment, hetero_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_files import tree
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

MANY = int(os.environ.get('PYG_SAR_EXAMPLES', '0'))
SECONDS = 20  # for one case, which takes milliseconds
MIB = 300  # by which all cases together may raise the peak of the process


class Target:
    """A folder of files by name, pieces of another one's to mix in, and what reads it."""

    def __init__(self, root: Path, files: dict[str, bytes], other: dict[str, bytes]) -> None:
        self.root, self.files, self.other = root, files, other
        self.names = sorted(files)
        self.touched = {*files}
        self.restore()

    def load(self, rng: random.Random) -> bool | None:
        """Reads it and works with it; whether it is what was written, if anything guards that."""
        raise NotImplementedError

    def forge(self) -> None:
        """Makes checksums right again."""

    def remove(self, name: str) -> Path:
        """Leaves nothing under a name, and gives its path."""
        self.touched.add(name)
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    def restore(self) -> None:
        """Sets back what was touched."""
        for name in [*self.touched]:
            path = self.remove(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self.files[name])
        self.touched = set()


class Shards(Target):
    """A partition."""

    def __init__(self, root: Path, files: dict[str, bytes], other: dict[str, bytes]) -> None:
        super().__init__(root, files, other)
        # Files that training never opens are few of the cases.
        read = [n for n in self.names if 'map' not in n]
        self.names = read * 6 + self.names + ['META.json'] * 12
        self.layouts = (0, 2), (1, 2), (0, 1)  # rank and number of ranks
        self.expected = [_comparable(read_shard(root, *layout)) for layout in self.layouts]

    def load(self, rng: random.Random) -> bool | None:
        if rng.random() < 0.01:
            verify_partition(self.root)
        number = rng.choice((0, 0, 1, 1, 2))
        data = read_shard(self.root, *self.layouts[number])
        is_right = _same(_comparable(data), self.expected[number])
        _use(data, rng)
        return is_right

    def forge(self) -> None:
        try:
            paths = [self.root / name for name in self.touched]
            if all(path.is_file() and path.stat().st_size < 1 << 24 for path in paths):
                content = json.loads((self.root / 'META.json').read_bytes())
                content['pyg_sar']['checksums'] = folder_checksums(self.root)
                (self.remove('META.json')).write_text(signed(content))
        except (ValueError, TypeError, KeyError, RecursionError, OSError):
            return


def _shards(root: Path, graph: Data | HeteroData, methods: list[Any]) -> Target:
    made = [root.with_name(f'{root.name}-{number}') for number in range(len(methods))]
    for folder, method in zip(made, methods, strict=True):
        pyg_sar.partition_graph(graph, 2, folder, method=method)
    return Shards(root, *map(tree, made))


def _homogeneous(root: Path) -> Target:
    graph = small_graph()
    del graph.pos, graph.edge_type, graph.edge_attr
    return _shards(root, graph, [assign(40, 2, kind) for kind in ('uneven', 'one reader')])


def _heterogeneous(root: Path) -> Target:
    parts = assignment(2)
    turned = {key: 1 - part for key, part in parts.items()}
    return _shards(root, hetero_graph(), [parts, turned])


class Sources(Target):
    """Files that are to be partitioned."""

    @staticmethod
    def make(root: Path) -> Target:
        graph = small_graph()
        arrays = {
            'edge_index': graph.edge_index.numpy(),
            'x': graph.x.numpy(),
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

    def load(self, rng: random.Random) -> bool | None:
        # The damage is in one of them; the other one is read without an error.
        is_mapped = rng.random() < 0.5
        read_saved(self.root / 'graph.pt', is_mapped=is_mapped)
        load_source(self.root / 'graph.npz', scratch=Scratch() if is_mapped else None)
        return None


class Checkpoints(Target):
    """A folder of checkpoints."""

    @staticmethod
    def make(root: Path) -> Target:
        made = [root.with_name(f'checkpoints-{number}') for number in range(2)]
        for number, folder in enumerate(made):
            pyg_sar.save_checkpoint(folder, *_model(number + 2), epoch=1)
        return Checkpoints(root, *map(tree, made))

    def load(self, rng: random.Random) -> bool | None:
        pyg_sar.load_checkpoint(self.root, *_model(2))
        return None


def _model(hidden: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, hidden)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


TARGETS: dict[str, tuple[float, Callable[[Path], Target]]] = {
    'shard': (4.0, _homogeneous),
    'hetero shard': (1.0, _heterogeneous),
    'source': (1.0, Sources.make),
    'checkpoint': (0.5, Checkpoints.make),
}
"""What is damaged, and its share of the cases."""


def _comparable(data: Data | HeteroData) -> Any:
    out = []
    for store in data.stores:
        for name, value in store.items():
            if isinstance(value, LocalEdges):
                ids, shard = value.handle.ids, value.handle.shard
                out += [(name, ids.clone()), (name, shard.halo_ptr)]
                out += [(name, s.recv_rows, s.send_index.clone()) for s in shard.steps]
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
    for store in data.edge_stores:
        plan = plan_of(store.edge_index.handle)
        for block in plan.blocks:
            for segments, num_rows in (
                (block.by_dst, block.num_rows),
                (block.by_src, block.num_dst),
            ):
                columns = segments.columns  # kernels that do not look read other memory
                assert (
                    not columns.numel() or 0 <= int(columns.min()) <= int(columns.max()) < num_rows
                )
                assert int(segments.ptr[-1]) == columns.numel()
        for step in plan.shard.steps:
            torch.ones(plan.shard.num_own, 2)[step.send_index]
        assert store['e_id'].dtype == torch.int64
    shard = data.edge_index.handle.shard if isinstance(data, Data) else None
    if shard is not None and shard.world_size == 1 and rng.random() < 0.2:
        conv = pyg_sar.SARConv(SAGEConv(3, 2))
        conv(torch.ones(shard.num_own, 3), as_rows_of_graph(data).edge_index).sum().backward()


def _damage(rng: random.Random, target: Target, marker: Path, outside: Path) -> bool:
    """Damages a folder; whether its checksums are right again."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        name, what = rng.choice(target.names), rng.random()
        if name in target.touched:
            continue
        content = target.files[name]
        path = target.remove(name)
        if what < 0.08:
            outside.write_bytes(content)
            rng.choice([lambda *_: None, *NOT_FILES.values()])(path, outside)
            continue
        try:
            if what < 0.3:
                content = damaged_bytes(rng, content)
            elif what < 0.4:
                content = rng.choice((target.other, target.files))[rng.choice(target.names)]
            elif what < 0.5 and not name.endswith('.json'):
                content = hostile(rng, content, marker)
            else:
                content = damaged_structure(rng, name, content)
        except Exception:  # of what cannot be written
            content = damaged_bytes(rng, content)
        path.write_bytes(content)
    is_forged = rng.random() < 0.5
    if is_forged:
        target.forge()
    return is_forged


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f'took more than {SECONDS} s')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _check(target: Target, rng: random.Random, marker: Path, outside: Path) -> None:
    told = str(target.root)
    with _limited():
        is_forged = _damage(rng, target, marker, outside)
        try:
            is_right = target.load(rng)
            assert is_forged or is_right is not False, 'loaded, but not what was written'
        except (ValueError, FileNotFoundError) as error:
            told = str(error)
        except RuntimeError as error:  # of the system: it has no 100 GB
            if "can't allocate memory" not in str(error):
                raise
    assert str(target.root) in told, 'the error does not name the folder'
    assert not marker.exists(), 'code of a file was run'


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
def test_damaged_files(tmp_path: Path) -> None:
    weights, makers = zip(*TARGETS.values(), strict=True)
    targets = [make(tmp_path / name) for name, make in zip(TARGETS, makers, strict=True)]
    marker, outside, peak = tmp_path / 'run-by-a-file', tmp_path / 'outside', _peak()

    @settings(
        max_examples=MANY or 150,
        derandomize=not MANY,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**62))
    def any_damage(seed: int) -> None:
        rng = random.Random(seed)
        target = rng.choices(targets, weights)[0]
        try:
            _check(target, rng, marker, outside)
        finally:
            target.restore()

    any_damage()
    assert _peak() - peak < MIB
