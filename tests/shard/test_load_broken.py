"""Missing, broken and tampered partition folders are clear errors, on all ranks.

Tables have statements. Their variables are what a file has by its names: META.json, our part of it,
or a file of part 1.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expressions import expressions
from hetero_graphs import HAS, WRITES, hetero_graph
from on_ranks import on_ranks
from partition_files import change_part
from small_graphs import cut, small_graph

import pyg_sar
from pyg_sar import partition_graph
from pyg_sar.comm.ranks import rank
from pyg_sar.shard.read_shard import read_shard

Change = Callable[[Path], object]

PART_FILES = [f'{name}.pt' for name in ('sar', 'graph', 'node_feats', 'edge_feats')]
MISSING: dict[str, Change] = {
    'the folder': shutil.rmtree,
    'META.json': lambda root: (root / 'META.json').unlink(),
    'a part': lambda root: shutil.rmtree(root / 'part_1'),
    **{f: lambda root, f=f: (root / 'part_1' / f).unlink() for f in PART_FILES},
}
BROKEN_META: dict[str, Change] = {
    'no JSON': lambda root: (root / 'META.json').write_text('{"num_parts": 3'),
    'no text': lambda root: (root / 'META.json').write_bytes(b'\xff\xfe\x00\x81'),
    'a list': lambda root: (root / 'META.json').write_text('[]'),
}
META = """
del pyg_sar, is_hetero; num_parts = 0; num_parts = '3'; num_parts = 4
"""
OURS = """
format_version = 1; del format_version; is_counted = 1; del fingerprint; halo_rows.pop()
halo_rows[1].pop(); halo_rows = [1, 2, 3]; part_num_nodes = ['1', '2', '3']; part_num_nodes[1] = 99
part_num_edges[1] = 99; node_attrs['z'] = {'dtype': 'float32', 'shape': []}
"""
BROKEN_FILES: dict[str, Change] = {
    **{
        f'{name} cut at {keep}': lambda root, name=name, keep=keep: _truncate(
            root / 'part_1' / name, keep
        )
        for name in ('sar.pt', 'node_feats.pt', 'edge_feats.pt')
        for keep in (0, 0.3, 0.95)
    },
    'sar.pt is text': lambda root: (root / 'part_1' / 'sar.pt').write_text('hello'),
    'sar.pt is a list': lambda root: torch.save([1, 2], root / 'part_1' / 'sar.pt'),
    'sar.pt of another part': lambda root: shutil.copy(
        root / 'part_2' / 'sar.pt', root / 'part_1' / 'sar.pt'
    ),
}
TAMPERED = {
    'sar.pt': """
del src; src[-1] += 10**6; src[-1] -= 10**6; src = src.flip(0); src = src.long()
src = src.view(-1, 1); src = src[1:].clone(); dst[-1] += 10**6; dst[-1] -= 10**6; dst = dst.flip(0)
boundary_pos[-1] += 10**6; boundary_pos[-1] -= 10**6; halo_pos[-1] += 10**6; halo_pos[-1] -= 10**6
halo_pos = halo_pos[1:].clone(); halo_ptr[1] += 1; halo_ptr += 1; boundary_ptr[1] += 1
boundary_ptr += 1; block_ptr[1] += 1; block_ptr += 1; block_ptr[-1] += 5
""",
    'node_feats.pt': """
feats['x'] = feats['x'][:-1].clone(); feats.clear(); feats['x'] = [1.0]; feats = [1]; del feats['y']
global_id = global_id[1:].clone(); global_id = global_id.double()
""",
    'edge_feats.pt': """
feats['edge_weight'] = feats['edge_weight'][1:].clone()
feats['edge_attr'] = feats['edge_attr'][1:].clone()
""",
    'graph.pt': 'edge_id = edge_id[1:].clone(); edge_id = edge_id.double()',
}
CHANGES = [(file, each) for file, table in TAMPERED.items() for each in expressions(table)]

META_OF_TYPES = """
del nodes; del nodes[0]['type']; edges[0]['type'].pop(); edges[0]['type'] = [1, 2, 3]; nodes.pop(0)
nodes[0]['part_num_nodes'].pop(); edges[0]['halo_rows'][1][0] = 10**6; edges.append([])
"""
"""Relations are no names, so those below are changes of contents."""

TYPES: dict[str, tuple[str, Callable[[Any], object]]] = {
    'no ids of a type': ('node_feats.pt', lambda c: c['author'].pop('global_id')),
    'no ids of a relation': ('graph.pt', lambda c: c.pop(HAS)),
    'no relation': ('sar.pt', lambda c: c.pop(HAS)),
    'no src': ('sar.pt', lambda c: c[HAS].pop('src')),
    'x of a type missing': ('node_feats.pt', lambda c: c['author']['feats'].clear()),
    'features of a type missing': ('node_feats.pt', lambda c: c.pop('author')),
    'features as a list': ('node_feats.pt', lambda c: c.update(author=[1])),
    'edge attribute missing': ('edge_feats.pt', lambda c: c[WRITES]['feats'].pop('year')),
}


def _truncate(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


def _change_meta(root: Path, statement: str, *, is_ours: bool = True) -> None:
    meta = json.loads((root / 'META.json').read_text())
    exec(statement, {}, meta['pyg_sar'] if is_ours else meta)
    (root / 'META.json').write_text(json.dumps(meta))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return cut(small_graph(), 3, tmp_path / 'parts')


def _load_all(root: Path) -> None:
    pyg_sar.local(pyg_sar.load_shard(root))


@pytest.mark.parametrize('what', MISSING)
def test_missing(root, what):
    MISSING[what](root)
    with pytest.raises(FileNotFoundError, match=r'expected .*parts.*\(got '):
        _load_all(root)


@pytest.mark.parametrize('what', [*BROKEN_META, *expressions(META), *expressions(OURS)])
def test_broken_meta(root, what):
    if what in BROKEN_META:
        BROKEN_META[what](root)
    else:
        _change_meta(root, what, is_ours=what not in META)
    with pytest.raises(ValueError, match='expected'):
        _load_all(root)


@pytest.mark.parametrize('what', [*BROKEN_FILES, *CHANGES], ids=str)
def test_broken_file(root, what):
    """All parts in one process, and the part alone as a rank loads it."""
    BROKEN_FILES[what](root) if what in BROKEN_FILES else change_part(root, *what)
    for load in (_load_all, lambda root: read_shard(root, 1, 3)):
        with pytest.raises(ValueError, match=r'expected.*part_1.*\(got '):
            load(root)


@pytest.mark.parametrize('what', [*TYPES, *expressions(META_OF_TYPES)])
def test_broken_types(tmp_path, what):
    root = tmp_path / 'parts'
    partition_graph(hetero_graph(), 2, root, method='random')
    if what in TYPES:
        file, change = TYPES[what]
        content = torch.load(root / 'part_1' / file, weights_only=True)
        change(content)
        torch.save(content, root / 'part_1' / file)
    else:
        _change_meta(root, what)
    with pytest.raises(ValueError, match=r'expected .*(META|part_[01]).*\(got '):
        _load_all(root)


BROKEN_ON_RANKS: dict[str, Change] = {
    **MISSING,
    'no JSON': BROKEN_META['no JSON'],
    'version 1': lambda root: _change_meta(root, 'format_version = 1'),
    'cut': BROKEN_FILES['sar.pt cut at 0.3'],
    'y missing': lambda root: change_part(root, 'node_feats.pt', "del feats['y']"),
    'src too large': lambda root: change_part(root, 'sar.pt', 'src[-1] += 10**6'),
    'halo_ptr': lambda root: change_part(root, 'sar.pt', 'halo_ptr[1] += 1'),
}


@pytest.mark.parametrize('what', BROKEN_ON_RANKS)
@on_ranks(3, 0)
def test_broken_on_one_rank_raises_on_all(root, tmp_path, what):
    """Rank 1 reads a broken copy; the others name it."""
    if rank() == 1:
        root = Path(shutil.copytree(root, tmp_path / 'parts of rank 1'))
        BROKEN_ON_RANKS[what](root)
    error = FileNotFoundError if what in MISSING else ValueError
    with pytest.raises(error, match=r'expected.*parts of rank 1|parts of rank 1.*expected') as told:
        pyg_sar.load_shard(root)
    text = str(told.value)
    assert text.startswith('rank 1: ') is (rank() != 1)
    assert rank() != 1 or 'rank 1: ' not in text.split('parts of rank 1')[0]
