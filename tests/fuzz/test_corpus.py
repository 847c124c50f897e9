"""Every defect that fuzzing and looking for harm have found in what reads files."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import NOT_FILES, Calls
from expressions import expressions
from hetero_graphs import hetero_graph
from partition_files import change_part
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from whole_partition import verify_partition

import pyg_sar
from pyg_sar.partition.memmap import Scratch
from pyg_sar.partition.sources import load_source
from pyg_sar.partition.sources.files import read_saved
from pyg_sar.partition.writer import replace_folder
from pyg_sar.shard.files import folder_checksums, read_json
from pyg_sar.shard.meta import signed
from pyg_sar.shard.read_shard import read_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return cut(small_graph(), 2, tmp_path / 'parts')


def _forge(folder: Path, change: Callable[[dict[str, Any]], object] = lambda meta: None) -> None:
    """Checksums are right again, after a change of the metadata."""
    content = read_json(folder)
    change(content['pyg_sar'])
    content['pyg_sar']['checksums'] = folder_checksums(folder)
    (folder / 'META.json').write_text(signed(content))


def _refused(folder: Path, match: str = 'expected') -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=match) as caught:
        read_shard(folder, 1, 2)
    assert str(folder) in str(caught.value)


def test_a_flipped_bit_of_a_feature(folder: Path) -> None:
    """It was loaded as if nothing were."""
    path = folder / 'part_1' / 'node_feats.pt'
    content = bytearray(path.read_bytes())
    x = read_shard(folder, 1, 2).x.clone()
    place = bytes(content).index(x[0].numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    _refused(folder, 'as it was written')
    assert not torch.equal(read_shard(folder, 1, 2, verify=False).x, x)
    _forge(folder)
    assert not torch.equal(read_shard(folder, 1, 2).x, x)


@pytest.mark.parametrize(
    ('old', 'new', 'match'),
    [
        ('"num_classes": 3', '"num_classes": 4', 'as it was written'),
        ('"pyg_sar":', '"pyg_sap":', "expected the key 'pyg_sar'"),
    ],
)
def test_changed_text_of_the_metadata(folder: Path, old: str, new: str, match: str) -> None:
    content = (folder / 'META.json').read_text()
    assert old in content
    (folder / 'META.json').write_text(content.replace(old, new))
    _refused(folder, match)


def _allocates(function: Callable[..., Any]) -> Callable[[Path], None]:
    call = Calls(function, 1 << 40)
    return lambda folder: torch.save({'n_id': call}, folder / 'part_1' / 'sar.pt')


def _compress(folder: Path) -> None:
    path = folder / 'part_1' / 'sar.pt'
    torch.save(torch.load(path, weights_only=True), path)  # with checksums in the archive
    with zipfile.ZipFile(path) as old:
        records = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as new:
        for name, content in records.items():
            new.writestr(name, content + b'\0' * (1 << 20))


def _changed(file: str, statement: str) -> Callable[[Path], None]:
    return lambda folder: change_part(folder, f'{file}.pt', statement)


def _made_of_x(expression: str) -> Callable[[Path], None]:
    return _changed('node_feats', f"feats['x'] = {expression}")


# A stride of zero makes a few bytes into any number.
REPEATED = 'torch.zeros((), dtype=torch.float64).expand'
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    # Looked up by bisection, it gave sources beyond the halo, which kernels read.
    'halo out of order': (_changed('sar', 'halo_pos = halo_pos.flip(0)'), "ascending 'halo_pos'"),
    'nodes beyond the graph': (_changed('node_feats', 'global_id += 10**6'), 'expected ids in'),
    'edges beyond the graph': (_changed('graph', 'edge_id += 10**6'), 'expected ids in'),
    'more rows than bytes': (_made_of_x(f'{REPEATED}(10**12)'), 'more than its bytes'),
    'more columns than bytes': (_made_of_x(f'{REPEATED}(18, 10**12)'), 'more than its bytes'),
    'sparse': (_made_of_x("feats['x'].to_sparse()"), 'expected'),
    'parameter': (_made_of_x("torch.nn.Parameter(feats['x'])"), 'expected'),
    'no memory': (_made_of_x("feats['x'].to('meta')"), 'expected'),
    # torch admits it to what it reads with weights_only.
    'bytearray': (_allocates(bytearray), 'needs .*bytearray'),
    # A megabyte may become a gigabyte.
    'compressed': (_compress, 'compressed'),
}


@pytest.mark.parametrize('what', DAMAGED)
def test_damaged_part(folder: Path, what: str) -> None:
    change, message = DAMAGED[what]
    change(folder)
    _forge(folder)
    _refused(folder, message)


@pytest.mark.parametrize(
    'name', ['META.json', *(f'part_1/{name}.pt' for name in ('sar', 'node_feats', 'edge_feats'))]
)
@pytest.mark.parametrize('is_archive', [True, False])
def test_code(folder: Path, tmp_path: Path, name: str, is_archive: bool) -> None:
    call = Calls(os.mkdir, str(tmp_path / 'made'))
    torch.save({'n_id': call}, folder / name, _use_new_zipfile_serialization=is_archive)
    _refused(folder)
    assert not (tmp_path / 'made').exists()


@pytest.mark.parametrize('is_archive', [True, False])
def test_a_graph_file_that_allocates(tmp_path: Path, is_archive: bool) -> None:
    path = tmp_path / 'graph.pt'
    content = {'edge_index': Calls(bytearray, 1 << 40)}
    torch.save(content, path, _use_new_zipfile_serialization=is_archive)
    with pytest.raises(ValueError, match='bytearray'):
        read_saved(path)


@pytest.mark.parametrize('kind', NOT_FILES)
@pytest.mark.parametrize('name', ['META.json', 'part_1/sar.pt', 'part_1/node_feats.pt'])
def test_what_is_no_file(folder: Path, tmp_path: Path, name: str, kind: str) -> None:
    """A pipe as META.json was waited for without end, a device read without end."""
    outside = tmp_path / 'outside'
    (folder / name).rename(outside)
    NOT_FILES[kind](folder / name, outside)
    _refused(folder)


def test_a_folder_that_is_a_link(folder: Path, tmp_path: Path) -> None:
    """What it holds may lie in another place as a whole, but not in part."""
    (tmp_path / 'link').symlink_to(folder)
    assert read_shard(tmp_path / 'link', 1, 2).num_nodes == read_shard(folder, 1, 2).num_nodes
    (folder / 'part_1' / 'sar.pt').rename(folder / 'elsewhere.pt')
    (folder / 'part_1' / 'sar.pt').symlink_to('../elsewhere.pt')
    assert read_shard(tmp_path / 'link', 1, 2).num_nodes == read_shard(folder, 1, 2).num_nodes
    shutil.move(folder / 'part_1', tmp_path / 'part_1')
    (folder / 'part_1').symlink_to(tmp_path / 'part_1')
    _refused(folder, 'inside the folder')


def test_verification_reads_nothing_outside(folder: Path, tmp_path: Path) -> None:
    (folder / 'node_map.pt').unlink()
    (folder / 'node_map.pt').symlink_to('/etc/passwd')
    os.mkfifo(folder / 'part_0' / 'pipe')
    problems = verify_partition(folder)
    assert sum('inside the folder' in problem for problem in problems) == 2  # checksum, content
    assert any("pipe' is not a file of this partition" in problem for problem in problems)


METAS = """
graph_attrs['edge_index'] = 1; graph_attrs['_mapping'] = 1; graph_attrs['x'] = 1
num_nodes = 10**12; block_edges[1].reverse(); node_attrs['x']['shape'] = [7]
node_attrs['x']['dtype'] = 'int8'; node_attrs['x'] = 3
"""


@pytest.mark.parametrize('change', expressions(METAS))
def test_metadata_made_to_mislead(folder: Path, change: str) -> None:
    _forge(folder, lambda meta: exec(change, {}, meta))

    _refused(folder)


def test_metadata_without_end(folder: Path) -> None:
    (folder / 'META.json').write_text('[' * 100_000)
    _refused(folder, 'expected JSON')


def test_types_that_name_files_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / 'parts'
    pyg_sar.partition_graph(hetero_graph(), 2, root, method='random')
    _forge(root, lambda m: m['nodes'].append({**m['nodes'][0], 'type': '../../secret'}))
    _refused(root, 'can name files')


def _npz(path: Path, **arrays: Any) -> Path:
    content = {'edge_index': np.zeros((2, 3), np.int64), 'num_nodes': np.array(4)}
    np.savez(path, **{**content, **arrays})
    return path


@pytest.mark.parametrize('scratch', [Scratch(), None])
def test_arrays(tmp_path: Path, scratch: Scratch | None) -> None:
    path = tmp_path / 'graph.npz'
    content = _npz(path).read_bytes()
    larger = content.replace(b'(2, 3), }           ', b'(2, 99999999999), } ')
    assert content != larger
    for damage in (
        lambda: _npz(path, x=np.array([{}], dtype=object)),
        lambda: path.write_bytes(larger),
        lambda: _npz(path, edge_index=np.zeros((3, 2), np.int64)),
    ):
        damage()
        with pytest.raises(ValueError, match=str(path)):
            load_source(path, scratch=scratch)


def test_pipes_beside_a_partition(tmp_path: Path) -> None:
    """One by the name of what a killed run leaves was waited for without end."""
    os.mkfifo(tmp_path / '.parts.0.tmp')
    with replace_folder(tmp_path / 'parts') as new:
        (new / 'file').touch()
    assert (tmp_path / 'parts' / 'file').exists()


def _model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters())


def _checkpoint(root: Path) -> Path:
    return pyg_sar.save_checkpoint(root, *_model(), epoch=1)


@pytest.mark.parametrize('kind', ['pipe', 'device', 'link outside', 'huge and empty'])
@pytest.mark.parametrize('name', ['checkpoint.json', 'model.pt'])
def test_checkpoints_of_what_is_no_file(tmp_path: Path, name: str, kind: str) -> None:
    path = _checkpoint(tmp_path / 'root') / name
    path.rename(tmp_path / 'outside')
    NOT_FILES[kind](path, tmp_path / 'outside')
    with pytest.raises(ValueError, match=str(tmp_path / 'root')):
        pyg_sar.load_checkpoint(tmp_path / 'root', *_model())


def test_a_checkpoint_that_is_a_link(tmp_path: Path) -> None:
    _checkpoint(tmp_path / 'root').rename(tmp_path / 'outside')
    (tmp_path / 'root' / 'epoch-000001').symlink_to(tmp_path / 'outside')
    with pytest.raises(ValueError, match='inside the folder'):
        pyg_sar.load_checkpoint(tmp_path / 'root', *_model())


def test_a_checkpoint_larger_than_its_files(tmp_path: Path) -> None:
    weight = torch.zeros(1).expand(1 << 40)
    path = _checkpoint(tmp_path) / 'model.pt'
    torch.save({'weight': weight, 'bias': torch.zeros(2)}, path)
    with pytest.raises(ValueError, match='more than its bytes'):
        pyg_sar.load_checkpoint(tmp_path, *_model())


def _load_own(roots: list[str]) -> str:
    return attempt(pyg_sar.load_shard, roots[torch.distributed.get_rank()])


def test_ranks_with_other_rows_for_each_other(tmp_path: Path) -> None:
    """Folders of one name that do not belong together; the exchange would not have ended well."""
    ours = cut(small_graph(), 2, tmp_path / 'ours')
    theirs = cut(small_graph(), 2, tmp_path / 'theirs', 'one reader')
    fingerprint = read_json(ours)['pyg_sar']['fingerprint']
    for folder in (ours, theirs):
        content = read_json(folder)
        content['pyg_sar'] |= {'fingerprint': fingerprint, 'checksums': {}}
        (folder / 'META.json').write_text(signed(content))
    outcomes = run_ranks(_load_own, 2, [str(ours), str(theirs)])
    assert_all_raise(outcomes, 'ValueError', 'expected the same partition on all ranks', 'copy one')
