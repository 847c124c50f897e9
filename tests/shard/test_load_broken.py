"""Missing, broken and tampered partition folders are clear errors, on all ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import HAS, WRITES, hetero_graph
from partition_files import edit, edit_part
from ranks import run_ranks
from small_graphs import assert_all_raise, attempt, cut, small_graph
from torch import Tensor

import pyg_sar
from pyg_sar import load_shard, partition_graph
from pyg_sar.shard.read_shard import read_shard


def _edit_meta(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        meta = json.loads((root / 'META.json').read_text())
        change(meta)
        (root / 'META.json').write_text(json.dumps(meta))

    return edit


def _ours(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return _edit_meta(lambda meta: change(meta['pyg_sar']))


def _truncate(name: str, keep: float) -> Callable[[Path], None]:
    def edit(root: Path) -> None:
        path = root / 'part_1' / name
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])

    return edit


def _last_plus(amount: int) -> Callable[[Tensor], Tensor]:
    def change(values: Tensor) -> Tensor:
        values[-1] += amount
        return values

    return change


def _second_plus_one(values: Tensor) -> Tensor:
    values[1] += 1
    return values


MISSING = {
    'the folder': shutil.rmtree,
    'META.json': lambda root: (root / 'META.json').unlink(),
    'a part': lambda root: shutil.rmtree(root / 'part_1'),
    **{
        f'part_1/{name}': lambda root, name=name: (root / 'part_1' / name).unlink()
        for name in ('sar.pt', 'graph.pt', 'node_feats.pt', 'edge_feats.pt')
    },
}


BROKEN_META = {
    'no JSON': lambda root: (root / 'META.json').write_text('{"num_parts": 3'),
    'no text': lambda root: (root / 'META.json').write_bytes(b'\xff\xfe\x00\x81'),
    'a list': lambda root: (root / 'META.json').write_text('[]'),
    "another program's": _edit_meta(
        lambda meta: [meta.pop(key) for key in ('pyg_sar', 'is_hetero')]
    ),
    'version 1': _ours(lambda meta: meta.update(format_version=1)),
    'no version': _ours(lambda meta: meta.pop('format_version')),
    'no parts': _edit_meta(lambda meta: meta.update(num_parts=0)),
    'parts as text': _edit_meta(lambda meta: meta.update(num_parts='3')),
    'one part more': _edit_meta(lambda meta: meta.update(num_parts=4)),
    'no fingerprint': _ours(lambda meta: meta.pop('fingerprint')),
    'halo rows of one part missing': _ours(lambda meta: meta['halo_rows'].pop()),
    'one halo count missing': _ours(lambda meta: meta['halo_rows'][1].pop()),
    'halo rows as numbers': _ours(lambda meta: meta.update(halo_rows=[1, 2, 3])),
    'counts as text': _ours(lambda meta: meta.update(part_num_nodes=['1', '2', '3'])),
    'node counts': _ours(lambda meta: meta['part_num_nodes'].__setitem__(1, 99)),
    'edge counts': _ours(lambda meta: meta['part_num_edges'].__setitem__(1, 99)),
    'an attribute nobody stored': _ours(
        lambda meta: meta['node_attrs'].update(z={'dtype': 'float32', 'shape': []})
    ),
}


BROKEN_FILES = {
    **{
        f'{name} cut at {keep}': _truncate(name, keep)
        for name in ('sar.pt', 'node_feats.pt', 'edge_feats.pt')
        for keep in (0, 0.3, 0.95)
    },
    'sar.pt is text': lambda root: (root / 'part_1' / 'sar.pt').write_text('hello'),
    'sar.pt is a list': lambda root: torch.save([1, 2], root / 'part_1' / 'sar.pt'),
    'sar.pt of another part': lambda root: shutil.copy(
        root / 'part_2' / 'sar.pt', root / 'part_1' / 'sar.pt'
    ),
    'rows of x missing': edit('node_feats.pt', x=lambda x: x[:-1].clone()),
    'x missing': edit_part('node_feats.pt', lambda c: c['feats'].clear()),
    'x is no tensor': edit('node_feats.pt', x=lambda x: [1.0]),
    'feats is a list': edit_part('node_feats.pt', lambda c: c.update(feats=[1])),
    'y missing': edit_part('node_feats.pt', lambda c: c['feats'].pop('y')),
    'rows of edge_weight missing': edit('edge_feats.pt', edge_weight=lambda w: w[1:].clone()),
    'rows of edge_attr missing': edit('edge_feats.pt', edge_attr=lambda a: a[1:].clone()),
}


TAMPERED = {
    'no src': edit_part('sar.pt', lambda sar: sar.pop('src')),
    'src too large': edit('sar.pt', src=_last_plus(10**6)),
    'src negative': edit('sar.pt', src=_last_plus(-(10**6))),
    'src of another block': edit('sar.pt', src=lambda src: src.flip(0)),
    'src as int64': edit('sar.pt', src=lambda src: src.long()),
    'src as a matrix': edit('sar.pt', src=lambda src: src.view(-1, 1)),
    'src short': edit('sar.pt', src=lambda src: src[1:].clone()),
    'dst too large': edit('sar.pt', dst=_last_plus(10**6)),
    'dst negative': edit('sar.pt', dst=_last_plus(-(10**6))),
    'dst unsorted': edit('sar.pt', dst=lambda dst: dst.flip(0)),
    'boundary too large': edit('sar.pt', boundary_pos=_last_plus(10**6)),
    'boundary negative': edit('sar.pt', boundary_pos=_last_plus(-(10**6))),
    'halo too large': edit('sar.pt', halo_pos=_last_plus(10**6)),
    'halo negative': edit('sar.pt', halo_pos=_last_plus(-(10**6))),
    'halo short': edit('sar.pt', halo_pos=lambda pos: pos[1:].clone()),
    'halo_ptr': edit('sar.pt', halo_ptr=_second_plus_one),
    'halo_ptr from one on': edit('sar.pt', halo_ptr=lambda ptr: ptr + 1),
    'boundary_ptr': edit('sar.pt', boundary_ptr=_second_plus_one),
    'boundary_ptr from one on': edit('sar.pt', boundary_ptr=lambda ptr: ptr + 1),
    'block_ptr': edit('sar.pt', block_ptr=_second_plus_one),
    'block_ptr from one on': edit('sar.pt', block_ptr=lambda ptr: ptr + 1),
    'block_ptr too long': edit('sar.pt', block_ptr=_last_plus(5)),
    'nodes short': edit('node_feats.pt', global_id=lambda ids: ids[1:].clone()),
    'nodes as floats': edit('node_feats.pt', global_id=lambda ids: ids.double()),
    'edges short': edit('graph.pt', edge_id=lambda ids: ids[1:].clone()),
    'edges as floats': edit('graph.pt', edge_id=lambda ids: ids.double()),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return cut(small_graph(), 3, tmp_path / 'parts')


@pytest.mark.parametrize('what', MISSING)
def test_missing(root, what):
    MISSING[what](root)
    with pytest.raises(FileNotFoundError, match=r'expected .*parts.*\(got '):
        pyg_sar.local(pyg_sar.load_shard(root))


@pytest.mark.parametrize('what', BROKEN_META)
def test_broken_meta(root, what):
    BROKEN_META[what](root)
    with pytest.raises(ValueError, match='expected'):
        pyg_sar.local(pyg_sar.load_shard(root))


@pytest.mark.parametrize('what', BROKEN_FILES | TAMPERED)
def test_broken_file(root, what):
    """All parts in one process, and the part alone as a rank loads it."""
    (BROKEN_FILES | TAMPERED)[what](root)
    with pytest.raises(ValueError, match=r'expected.*part_1.*\(got '):
        pyg_sar.local(pyg_sar.load_shard(root))
    with pytest.raises(ValueError, match=r'expected.*part_1.*\(got '):
        read_shard(root, 1, 3)


BROKEN_TYPES = {
    'nodes missing in META': _ours(lambda meta: meta.pop('nodes')),
    'a type without a name': _ours(lambda meta: meta['nodes'][0].pop('type')),
    'a relation of two names': _ours(lambda meta: meta['edges'][0]['type'].pop()),
    'a relation of numbers': _ours(lambda meta: meta['edges'][0].update(type=[1, 2, 3])),
    'an unknown type': _ours(lambda meta: meta['nodes'].pop(0)),
    'counts of a type': _ours(lambda meta: meta['nodes'][0]['part_num_nodes'].pop()),
    'halo rows': _ours(lambda meta: meta['edges'][0]['halo_rows'][1].__setitem__(0, 10**6)),
    'an entry that is a list': _ours(lambda meta: meta['edges'].append([])),
    'no ids of a type': edit_part('node_feats.pt', lambda c: c['author'].pop('global_id')),
    'no ids of a relation': edit_part('graph.pt', lambda c: c.pop(HAS)),
    'no relation': edit_part('sar.pt', lambda sar: sar.pop(HAS)),
    'no src': edit_part('sar.pt', lambda sar: sar[HAS].pop('src')),
    'x of a type missing': edit_part('node_feats.pt', lambda c: c['author']['feats'].clear()),
    'features of a type missing': edit_part('node_feats.pt', lambda c: c.pop('author')),
    'features as a list': edit_part('node_feats.pt', lambda c: c.update(author=[1])),
    'edge attribute missing': edit_part('edge_feats.pt', lambda c: c[WRITES]['feats'].pop('year')),
}


@pytest.mark.parametrize('what', BROKEN_TYPES)
def test_broken_types(tmp_path, what):
    partition_graph(hetero_graph(), 2, tmp_path / 'parts', method='random')
    BROKEN_TYPES[what](tmp_path / 'parts')
    with pytest.raises(ValueError, match=r'expected .*(META|part_[01]).*\(got '):
        pyg_sar.local(pyg_sar.load_shard(tmp_path / 'parts'))


def _load(root_of_rank: list[str], rank: int | None = None) -> str:
    own = torch.distributed.get_rank()
    return attempt(load_shard, root_of_rank[own], rank)


BROKEN_ON_RANKS = {
    **{what: (MISSING[what], FileNotFoundError) for what in MISSING},
    **{what: (BROKEN_META[what], ValueError) for what in ('no JSON', 'version 1')},
    **{what: (BROKEN_FILES[what], ValueError) for what in ('sar.pt cut at 0.3', 'y missing')},
    **{what: (TAMPERED[what], ValueError) for what in ('src too large', 'halo_ptr')},
}


@pytest.mark.parametrize('what', BROKEN_ON_RANKS)
def test_broken_on_one_rank_raises_on_all(root, tmp_path, what):
    """Rank 1 reads a broken copy; the others name it."""
    change, kind = BROKEN_ON_RANKS[what]
    broken = tmp_path / 'parts of rank 1'
    shutil.copytree(root, broken)
    change(broken)
    roots = [str(root), str(broken), str(root)]
    outcomes = run_ranks(_load, 3, roots)
    assert_all_raise(outcomes, kind.__name__, 'expected', 'parts of rank 1')
    assert outcomes[0].startswith(f'{kind.__name__}: rank 1: ')
    assert outcomes[2].startswith(f'{kind.__name__}: rank 1: ')
    assert 'rank 1: ' not in outcomes[1].split('parts of rank 1')[0]
