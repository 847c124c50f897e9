"""What users change or keep is not lost: by transforms in place, by force, by killed writers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_files import command
from partition_files import is_in_file, meta_of, tree
from torch_geometric.data import Data

import pyg_sar
from pyg_sar.partition import writer
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.utils import durable

# The module, not the function of this name that the package offers.
cut_graph = import_module('pyg_sar.partition.partition_graph')

NUM_NODES = 8000


class Impute:
    """Writes zeros in the place of what is no number, as many programs do."""

    def __call__(self, data: Any) -> Any:
        data.x[data.x.isnan()] = 0.0
        data.y += 1
        return data


def _graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_NODES, 64, generator=generator)  # 2 MB: mapped where it can be
    x[torch.rand(x.shape, generator=generator) < 0.1] = torch.nan
    edges = torch.randint(NUM_NODES, (2, 3 * NUM_NODES), generator=generator)
    return Data(x=x, y=torch.arange(NUM_NODES), edge_index=edges)


@pytest.mark.parametrize('kind', ['graph.pt', 'graph.npz', 'folder'])
def test_what_a_transform_changes_in_place_is_kept(kind: str, tmp_path: Path) -> None:
    graph, source, out = _graph(), tmp_path / kind, tmp_path / 'out'
    arrays = {name: value.numpy() for name, value in graph.to_dict().items()}
    if kind.endswith('.pt'):
        torch.save(graph, source)
    elif kind.endswith('.npz'):
        np.savez(source, **arrays)
    else:
        source.mkdir()
        for name, array in arrays.items():
            np.save(source / f'{name}.npy', array)
    assert graph.x.isnan().any()
    assert is_in_file(load_source(source, scratch=Scratch(tmp_path)).x)
    before = tree(tmp_path)
    assert command(source, out, '--transform', f'{__name__}.Impute') == 0
    data = pyg_sar.load_shard(out)
    assert torch.equal(pyg_sar.gather(data.x), graph.x.nan_to_num())
    assert torch.equal(pyg_sar.gather(data.y), graph.y + 1)
    assert before.items() <= tree(tmp_path).items()


def _small() -> Data:
    return Data(x=torch.ones(8, 2), edge_index=torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]]))


def test_files_of_others_are_not_deleted(tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    for _ in range(2):  # nothing but a partition is replaced
        pyg_sar.partition_graph(_small(), 2, root, force=True)
    _save(root)
    with pytest.raises(ValueError, match=r"such as 'run/model.pt'.*would be deleted"):
        pyg_sar.partition_graph(_small(), 2, root, force=True)
    assert (root / 'run' / 'model.pt').read_text() == 'epoch 100'
    pyg_sar.load_shard(root, 0)
    shutil.rmtree(root / 'run')
    pyg_sar.partition_graph(_small(), 2, root, force=True)


def test_folders_beside_a_partition_that_others_made_are_left(tmp_path: Path) -> None:
    names = ['.parts.of-last-year.old', '.parts.v2.0123456789ab.old', '.parts.notes.tmp']
    names += ['.parts.0123456789ab.tmp', '.parts.0123456789ab.old', '.parts.v2.0123456789ab.tmp']
    for name in (*names, '.parts.abcdef012345.tmp'):
        (tmp_path / name).mkdir()
        if name in names:
            (tmp_path / name / 'precious.pt').write_text('weeks of work')
    for name in ('.parts.abcdef012345.tmp', names[-1]):  # ours, and of a partition of another name
        (tmp_path / name / 'made_by_pyg_sar').touch()
    (tmp_path / '.parts.abcdef000000.tmp').symlink_to(names[0])
    for _ in range(2):
        pyg_sar.partition_graph(_small(), 2, tmp_path / 'parts', force=True)
        assert all((tmp_path / name / 'precious.pt').exists() for name in names)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names, 'parts', '.parts.abcdef000000.tmp'}


def _save(parts: Path) -> None:
    (parts / 'run').mkdir()
    (parts / 'run' / 'model.pt').write_text('epoch 100')


def _another(parts: Path) -> None:
    data = Data(x=torch.zeros(8, 2), edge_index=_small().edge_index)
    pyg_sar.partition_graph(data, 2, parts, method='range', force=True)


def _in_its_place(write: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda parts: (shutil.rmtree(parts, ignore_errors=True), write(parts))


def _link(path: Path) -> None:
    path.symlink_to(path.parent / 'elsewhere')


def _whole(root: Path) -> dict[str, bytes | str]:
    """All below a folder, by its names; symbolic links as what they point to."""
    paths = [p for p in [root, *root.rglob('*')] if p.is_symlink() or p.is_file()]
    return {
        str(p.relative_to(root)): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in paths
    }


OTHER_ROWS = {'feats': {'x': torch.zeros(4, 2)}}
WRITES: dict[str, tuple[Callable[[Path], object], str]] = {
    'a folder': (_save, 'run/model.pt'),
    'a link': (lambda parts: (parts / 'run').symlink_to(parts.parent / 'elsewhere'), 'run'),
    'a folder in a part': (lambda parts: (parts / 'part_1' / 'run').mkdir(), 'part_1/run'),
    'other rows': (
        lambda parts: torch.save(OTHER_ROWS, parts / 'part_1' / 'node_feats.pt'),
        'part_1/node_feats.pt',
    ),
    'another partition': (_another, 'part_1/sar.pt'),
    'a file in its place': (_in_its_place(lambda parts: parts.write_text('a file')), '.'),
    'a link in its place': (_in_its_place(_link), '.'),
}
"""What is written, and the name that an error has of it."""

OF_A_PARTITION = ('a folder in a part', 'other rows')
MOMENTS = [
    *(('in the cut', True), ('as it ends', True)),
    *(('at the exchange', True), ('at the exchange', False)),
]
CASES = [  # every two of them together
    (what, (i + j) % 2 == 0 and what not in OF_A_PARTITION, moment)
    for i, what in enumerate(WRITES)
    for j, moment in enumerate(MOMENTS)
    if not ('exchange' in moment[0] and what == 'a file in its place')  # the system refuses
]


@pytest.mark.parametrize(('what', 'is_first', 'moment'), CASES)
def test_what_comes_into_the_place_while_a_graph_is_cut_stays(
    what: str,
    is_first: bool,
    moment: tuple[str, bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts, found, (when, exchanges) = tmp_path / 'parts', [], moment
    write, name_of_it = WRITES[what]
    (tmp_path / 'elsewhere').mkdir()
    if not is_first:
        pyg_sar.partition_graph(_small(), 2, parts, method='range')
    elif what in ('a folder', 'a link'):
        parts.mkdir()

    def wrote(function: Any) -> Any:
        def write_before(*args: Any, **kwargs: Any) -> Any:
            if not found:
                found.append({})
                write(parts)
                found[0] = _whole(parts)
            return function(*args, **kwargs)

        return write_before

    module, name = {
        'in the cut': (cut_graph, 'assign_nodes'),
        'as it ends': (cut_graph, 'write_partition'),
        'at the exchange': (writer, 'put'),
    }[when]
    monkeypatch.setattr(module, name, wrote(getattr(module, name)))
    if not exchanges:
        monkeypatch.setattr('pyg_sar.utils.durable._exchange', lambda a, b: False)
    with pytest.raises(ValueError, match='as it was when the cut began') as raised:
        pyg_sar.partition_graph(_small(), 2, parts, method='range', force=True)
    assert f"got '{name_of_it}'" in str(raised.value)
    assert [_whole(parts)] == found
    kept = Path(str(raised.value).rsplit("'", 2)[1])
    others = {path.name for path in tmp_path.iterdir()}
    assert others == {'parts', 'elsewhere', kept.name}
    for _ in range(2):  # which no later run removes
        loaded = [pyg_sar.local(pyg_sar.load_shard(kept, rank)).x for rank in range(2)]
        assert torch.equal(torch.cat(loaded), _small().x)
        pyg_sar.partition_graph(_small(), 2, tmp_path / 'elsewhere', method='range', force=True)
        if what == 'a folder' and not is_first:
            shutil.rmtree(parts / 'run', ignore_errors=True)
            pyg_sar.partition_graph(_small(), 2, parts, method='range', force=True)


def test_a_replacement_is_on_the_disk_before_the_old_one_goes(tmp_path, monkeypatch):
    synced: set[Path] = set()
    sync, exchange, remove = os.fsync, durable._exchange, shutil.rmtree
    events: list[str] = []

    def noted_sync(file: int) -> None:
        sync(file)
        path = Path(os.readlink(f'/proc/self/fd/{file}'))
        synced.add(path)
        events.append('sync of the names' if path == tmp_path else 'sync')

    def noted_exchange(new: Path, root: Path) -> bool:
        assert {new, *new.rglob('*')} <= synced
        assert len([*new.rglob('*')]) > 10
        events.append('exchange')
        return exchange(new, root)

    def noted_remove(path: Path, **kwargs: Any) -> None:
        events.append('remove')
        remove(path, **kwargs)

    pyg_sar.partition_graph(_small(), 2, tmp_path / 'parts')
    monkeypatch.setattr(os, 'fsync', noted_sync)
    monkeypatch.setattr(durable, '_exchange', noted_exchange)
    monkeypatch.setattr(shutil, 'rmtree', noted_remove)
    pyg_sar.partition_graph(_small(), 2, tmp_path / 'parts', force=True)
    events = events[events.index('exchange') :]
    assert events.index('sync of the names') < events.index('remove')


@pytest.mark.parametrize('kind', [np.int64, np.int32, np.uint8])
def test_whole_numbers_of_numpy(kind: Any, tmp_path: Path) -> None:
    """They are those of Python, also in META.json, which has no others."""
    summary = []
    for of in (kind, int):
        root = tmp_path / of.__name__
        options = {'method': 'ldg', 'seed': of(3)}
        summary.append(pyg_sar.partition_graph(_small(), of(2), root, **options))
        assert meta_of(root)['partition']['seed'] == 3
    assert summary[0] == summary[1]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    path = pyg_sar.save_checkpoint(tmp_path / 'run', model, optimizer, epoch=kind(2))
    assert path.name == 'epoch-000002'
    assert pyg_sar.load_checkpoint(tmp_path / 'run', model).epoch == 2


def test_a_file_is_no_folder_of_checkpoints(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    torch.save(model.state_dict(), tmp_path / 'state.pt')
    with pytest.raises(ValueError, match='got the file'):
        pyg_sar.load_checkpoint(tmp_path / 'state.pt', model)
    assert pyg_sar.load_checkpoint(tmp_path / 'none', model) is None
