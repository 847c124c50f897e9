"""Damaged folders and files end in an error that names them, or in what was written.

Where checksums were forged as well, what is loaded may be other data that kernels can work with. No
code of a file runs, no case takes long or much memory. PYG_SAR_EXAMPLES=100000 in the environment
draws that many cases, others in every run.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import NOT_FILES, damaged_bytes, damaged_structure, hostile
from drawn_graphs import examples
from hetero_graphs import assignment, hetero_graph
from hypothesis import given
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

SECONDS = 20  # for one case, which takes milliseconds
MIB = 300  # by which all cases together may raise the peak of the process

Load = Callable[[Path, Any, random.Random], object]
"""Reads a folder in one of several ways, works with it, and gives what must not differ."""


def _homogeneous(folder: Path, number: int) -> None:
    graph = small_graph()
    del graph.pos, graph.edge_type, graph.edge_attr
    method = assign(40, 2, ('uneven', 'one reader')[number])
    pyg_sar.partition_graph(graph, 2, folder, method=method)


def _heterogeneous(folder: Path, number: int) -> None:
    parts = {key: (part + number) % 2 for key, part in assignment(2).items()}
    pyg_sar.partition_graph(hetero_graph(), 2, folder, method=parts)


def _load_shard(folder: Path, layout: tuple[int, int], rng: random.Random) -> list[Any]:
    if rng.random() < 0.01:
        verify_partition(folder)
    data = read_shard(folder, *layout)
    found = _comparable(data)
    _use(data, rng)
    return found


def _sources(folder: Path, number: int) -> None:
    graph, save = small_graph(), (np.savez, np.savez_compressed)[number]
    arrays = {name: graph[name].numpy() for name in ('edge_index', 'x', 'y')}
    folder.mkdir()
    torch.save((graph, graph.to_dict())[number], folder / 'graph.pt')
    save(folder / 'graph.npz', **arrays, train_idx=np.arange(9))


def _load_sources(folder: Path, is_mapped: bool, rng: random.Random) -> None:
    # The damage is in one of them; the other one is read without an error.
    read_saved(folder / 'graph.pt', is_mapped=is_mapped)
    load_source(folder / 'graph.npz', scratch=Scratch() if is_mapped else None)


def _model(hidden: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, hidden)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def _checkpoints(folder: Path, number: int) -> None:
    pyg_sar.save_checkpoint(folder, *_model(number + 2), epoch=1)


def _load_checkpoint(folder: Path, way: None, rng: random.Random) -> None:
    pyg_sar.load_checkpoint(folder, *_model(2))


RANKS = (0, 2), (0, 2), (1, 2), (1, 2), (0, 1)
"""Each and the number of them."""

TARGETS: dict[str, tuple[int, Callable[[Path, int], None], Load, Sequence[Any]]] = {
    'shard': (8, _homogeneous, _load_shard, RANKS),
    'hetero shard': (2, _heterogeneous, _load_shard, RANKS),
    'source': (2, _sources, _load_sources, (False, True)),
    'checkpoint': (1, _checkpoints, _load_checkpoint, (None,)),
}
"""What is damaged: its share of the cases, what writes one of two, what reads it, in which ways."""


class Target:
    """A folder of files by name, and pieces of another one's to mix in."""

    def __init__(self, root: Path, name: str) -> None:
        self.share, make, self.load, self.ways = TARGETS[name]
        self.root, other = root / name, root / f'other {name}'
        for number, folder in enumerate((self.root, other)):
            make(folder, number)
        self.files, self.other = tree(self.root), tree(other)
        # Files that training never opens are few of the cases.
        names = sorted(self.files)
        self.names = [n for n in names if 'map' not in n] * 6 + names
        self.names += [n for n in names if n == 'META.json'] * 12
        self.touched: set[str] = set()
        rng = random.Random(0)
        self.expected = {way: self.load(self.root, way, rng) for way in self.ways}

    def forge(self) -> None:
        """Makes checksums of a partition right again."""
        if 'META.json' not in self.files:
            return
        try:
            paths = [self.root / name for name in self.touched]
            if all(path.is_file() and path.stat().st_size < 1 << 24 for path in paths):
                content = json.loads((self.root / 'META.json').read_bytes())
                content['pyg_sar']['checksums'] = folder_checksums(self.root)
                (self.remove('META.json')).write_text(signed(content))
        except (ValueError, TypeError, KeyError, RecursionError, OSError):
            return

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
            self.remove(name).write_bytes(self.files[name])
        self.touched = set()


def _comparable(data: Data | HeteroData) -> list[Any]:
    out: list[Any] = []
    for store in data.stores:
        for name, value in store.items():
            if isinstance(value, LocalEdges):
                ids, shard = value.handle.ids, value.handle.shard
                out += [name, _plain(ids), _plain(shard.halo_ptr)]
                out += [(step.recv_rows, _plain(step.send_index)) for step in shard.steps]
            else:
                out += [name, _plain(value)]
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return type(value), value


def _use(data: Data | HeteroData, rng: random.Random) -> None:
    """What convs do with it: kernels over every block, with rows as they would be received."""
    for store in data.edge_stores:
        plan = plan_of(store.edge_index.handle)
        for block in plan.blocks:
            both = (block.by_dst, block.num_rows), (block.by_src, block.num_dst)
            for segments, num_rows in both:
                columns = segments.columns  # kernels that do not look read other memory
                assert not columns.numel() or int(columns.min()) >= 0
                assert not columns.numel() or int(columns.max()) < num_rows
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
        is_forged, way = _damage(rng, target, marker, outside), rng.choice(target.ways)
        try:
            found = target.load(target.root, way, rng)
            assert is_forged or found == target.expected[way], 'loaded, but not what was written'
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
    targets = [Target(tmp_path, name) for name in TARGETS]
    marker, outside, peak = tmp_path / 'run-by-a-file', tmp_path / 'outside', _peak()

    @examples(150)
    @given(st.integers(0, 2**62))  # draws of hypothesis's own damage fewer kinds of places
    def any_damage(seed: int) -> None:
        rng = random.Random(seed)
        target = rng.choices(targets, [target.share for target in targets])[0]
        try:
            _check(target, rng, marker, outside)
        finally:
            target.restore()

    any_damage()
    assert _peak() - peak < MIB
