"""docs/format.md says what a written folder really holds: every file, key, dtype and shape."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hetero_graphs import hetero_graph
from partition_files import load_part
from small_graphs import cut, small_graph
from torch import Tensor

import pyg_sar

PAGE = Path(__file__).parents[2] / 'docs' / 'format.md'
PARTS = 3
NAMES = {'node_map/TYPE.pt': 'node_map.pt', 'edge_map/SRC__NAME__DST.pt': 'edge_map.pt'}


def _sections() -> dict[str, list[dict[str, list[str]]]]:
    """The tables with a row per key under every heading, by key."""
    found: dict[str, list[dict[str, list[str]]]] = {}
    for section in PAGE.read_text().split('\n## ')[1:]:
        tables = re.findall(r'\| key \|[^\n]*\n\|[-|]+\|\n((?:\|[^\n]*\n?)*)', section)
        rows = [[re.split(r' \| ', line[2:-2]) for line in t.splitlines()] for t in tables]
        title = section.splitlines()[0].strip('`')
        found[title] = [{row[0].strip('`'): row[1:] for row in table} for table in rows]
    return found


@pytest.fixture(scope='module')
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders that together have all there may be: types and none, times and none."""
    root = tmp_path_factory.mktemp('folders')
    plain, timed, types = small_graph(), small_graph(), hetero_graph()
    timed.time, timed.edge_time = torch.arange(40), torch.arange(timed.num_edges)
    for graph in (plain, timed, types):
        graph.pairs = torch.zeros(2, 3)  # whole on every rank
    cut(plain, PARTS, root / 'plain')
    cut(timed, PARTS, root / 'timed')
    pyg_sar.partition_graph(types, PARTS, root / 'types', method='random')
    return [root / name for name in ('plain', 'timed', 'types')]


def _files(folder: Path) -> set[str]:
    paths = {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}
    names = {re.sub(r'^part_\d+/', 'part_P/', path) for path in paths}
    return {re.sub(r'^(node|edge)_map/.*', r'\1_map.pt', name) for name in names}


def test_every_file_has_a_section_and_a_line(folders):
    sections = {title for title in _sections() if title.endswith(('.pt', '.json'))}
    listed = set(re.findall(r'^\| `([^`]*\.(?:pt|json))` \|', PAGE.read_text(), re.MULTILINE))
    for folder in folders:
        assert _files(folder) == sections == listed


def _same_keys(said: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Each key is said and there; one that only some folders have is said to be so."""
    assert set().union(*found) == {*said}
    for key in said:
        if not all(key in each for each in found):
            assert re.search(r'heterogeneous|where ', ' '.join(said[key])), key


KINDS = {int: 'int', bool: 'bool', str: 'str', list: 'list', dict: 'dict', type(None): 'null'}


def test_metadata(folders):
    top, ours, nodes, edges = _sections()['META.json']
    metas = [json.loads((folder / 'META.json').read_text()) for folder in folders]
    _same_keys(top, metas)
    plain, typed = [m['pyg_sar'] for m in metas if not m['is_hetero']], metas[-1]['pyg_sar']
    both = {**ours, **{k: v for k, v in (nodes | edges).items() if k not in ours and k != 'type'}}
    hetero = {'nodes', 'edges'}
    for meta in plain:
        assert {*meta} == {*both} - hetero
    assert {*typed} == {*ours}
    _same_keys(nodes, typed['nodes'])
    _same_keys(edges, typed['edges'])
    for said, values in [
        *((top, meta) for meta in metas),
        *((both, meta) for meta in plain),
        (ours, typed),
        *((nodes, entry) for entry in typed['nodes']),
        *((edges, entry) for entry in typed['edges']),
    ]:
        for key, value in values.items():
            assert KINDS[type(value)] in said[key][0].split(' or '), key
    assert f'`format_version` in META.json is {typed["format_version"]}.' in PAGE.read_text()


def _by_type(content: dict[Any, Any], is_hetero: bool) -> dict[Any, Any]:
    return content if is_hetero else {None: content}


@pytest.mark.parametrize('name', ['graph', 'node_feats', 'edge_feats', 'sar'])
def test_keys_dtypes_and_shapes(folders, name):
    (said,) = _sections()[f'part_P/{name}.pt']
    found = []
    for folder in folders:
        meta = json.loads((folder / 'META.json').read_text())
        for part in range(PARTS):
            files = [
                _by_type(load_part(folder, part, f'{file}.pt'), meta['is_hetero'])
                for file in (name, 'sar')
            ]
            for key, values in files[0].items():
                found.append(values)
                sizes, index = {'P + 1': PARTS + 1}, files[1].get(key, {})
                if name == 'node_feats':
                    sizes['n'] = values['global_id'].numel()
                if 'src' in index:
                    sizes['e'] = index['src'].numel()
                    sizes['h'], sizes['b'] = (
                        int(index[f'{k}_ptr'][-1]) for k in ('halo', 'boundary')
                    )
                for what, value in values.items():
                    dtype, shape = said[what][:2]
                    if isinstance(value, Tensor):
                        assert dtype in (str(value.dtype).removeprefix('torch.'), 'any')
                        assert value.shape == (sizes[shape.strip('`[]')],), what
                    else:
                        assert type(value).__name__ == dtype
    _same_keys(said, [values for values in found if values])


@pytest.mark.parametrize('kind', ['node', 'edge'])
def test_attributes_lie_in_feats_but_for_times(folders, kind):
    for folder in folders[:2]:
        named = {*json.loads((folder / 'META.json').read_text())['pyg_sar'][f'{kind}_attrs']}
        content = load_part(folder, 1, f'{kind}_feats.pt')
        times = named & {'time', 'edge_time'}
        assert {*content['feats']} == named - times
        assert {*content.get('times', {})} == times
