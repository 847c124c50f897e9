"""Whatever the graph: the parts together are the graph, and each knows what the others read.

With PYG_SAR_EXAMPLES=2000 in the environment that many are drawn, others in every run.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from cut_graphs import check_once, check_rows, cut, read_parts, write
from drawn_graphs import Drawn, examples, graphs
from hypothesis import given
from torch import Tensor

from pyg_sar.inspection import verify_partition

pytestmark = pytest.mark.filterwarnings('ignore:Sparse CS. tensor support is in beta')


def _rows_of(index: dict[str, Tensor], kind: str, other: int) -> Tensor:
    start, end = index[f'{kind}_ptr'][other : other + 2].tolist()
    return index[f'{kind}_pos'][start:end].long()


def _check_nodes(root: Path, drawn: Drawn) -> dict[Any, Tensor]:
    """Every node once, with its attributes; returns the part of every node by type."""
    part_of = {}
    sars = read_parts(root, drawn, 'sar.pt')
    feats, others = (read_parts(root, drawn, f'node_{name}.pt') for name in ('feats', 'attrs'))
    for key, count in drawn.num_nodes.items():
        ids = [sar['n_id'][key] for sar in sars]
        check_once(ids, count)
        part_of[key] = torch.empty(count, dtype=torch.int64)
        for part, own in enumerate(ids):
            assert torch.equal(own, own.sort().values)
            part_of[key][own] = part
            found = {**feats[part].get(key, {}).get('feats', {}), **others[part].get(key, {})}
            assert found.keys() == drawn.node_attrs[key].keys()
            for name, want in drawn.node_attrs[key].items():
                check_rows(found[name], own, want, (key, name))
        if drawn.method in ('given', 'file'):
            assert torch.equal(part_of[key], drawn.parts[key])
    if drawn.method not in ('given', 'file'):
        assert set(torch.cat(list(part_of.values())).tolist()) == set(range(drawn.num_parts))
    return part_of


def _check_edges(root: Path, drawn: Drawn, part_of: dict[Any, Tensor]) -> None:
    """Every edge once, with its destination, in order; halos are boundaries of the other side."""
    sars, graph_files = (read_parts(root, drawn, name) for name in ('sar.pt', 'graph.pt'))
    feats, others = (read_parts(root, drawn, f'edge_{name}.pt') for name in ('feats', 'attrs'))
    for key, edges in drawn.edges.items():
        src_key, dst_key = (None, None) if key is None else (key[0], key[2])
        check_once([sar['edges'][key]['e_id'] for sar in sars], edges.size(1))
        for part, sar in enumerate(sars):
            index, e_id = sar['edges'][key], sar['edges'][key]['e_id']
            n_ids = [other['n_id'][src_key] for other in sars]
            halo = []
            for other, other_sar in enumerate(sars):
                rows = _rows_of(index, 'halo', other)
                assert torch.equal(rows, _rows_of(other_sar['edges'][key], 'boundary', part))
                halo.append(n_ids[other][rows])
            sources = torch.cat([n_ids[part], *halo])
            src, dst = sources[index['src'].long()], sar['n_id'][dst_key][index['dst'].long()]
            assert torch.equal(torch.stack([src, dst]), edges[:, e_id])
            assert bool((part_of[dst_key][dst] == part).all())
            remote = src[part_of[src_key][src] != part].unique()
            assert torch.equal(torch.cat(halo).sort().values, remote)
            blocks = part_of[src_key][src]
            assert (
                index['block_ptr'].diff().tolist()
                == blocks.bincount(minlength=drawn.num_parts).tolist()
            )
            order = list(zip(*(t.tolist() for t in (blocks, dst, src, e_id)), strict=True))
            assert order == sorted(order)  # parallel edges in the order of the graph

            pyg = graph_files[part][key]
            assert torch.equal(torch.stack([pyg['row'], pyg['col']]), edges[:, pyg['edge_id']])
            assert torch.equal(pyg['edge_id'].sort().values, e_id.sort().values)

            found = {**feats[part].get(key, {}).get('feats', {}), **others[part].get(key, {})}
            assert found.keys() == drawn.edge_attrs[key].keys()
            for name, want in drawn.edge_attrs[key].items():
                ids = e_id
                if name == 'edge_attr' and name not in others[part].get(key, {}):
                    ids = feats[part][key]['global_id']
                check_rows(found[name], ids, want, (key, name))


def _check_parts(drawn: Drawn) -> None:
    with cut(drawn) as root:
        assert verify_partition(root) == []
        _check_edges(root, drawn, _check_nodes(root, drawn))


def _content(root: Path) -> dict[Path, bytes]:
    files = (path for path in root.rglob('*') if path.is_file())
    return {path.relative_to(root): path.read_bytes() for path in files}


def _check_bytes(drawn: Drawn) -> None:
    """The same graph twice, and from a file, whose tensors stay on disk."""
    # META.json names the file that parts come from, and each run here has one of its own.
    drawn.method = 'given' if drawn.method == 'file' else drawn.method
    # A file is read as a dict, from which PyG makes x, y and others first.
    drawn.data = type(drawn.data).from_dict(drawn.data.to_dict())
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(drawn, folder / 'a')
        write(drawn, folder / 'b')
        torch.save(drawn.data, folder / 'graph.pt')
        drawn.data = folder / 'graph.pt'
        write(drawn, folder / 'c')
        first = _content(folder / 'a')
        assert first == _content(folder / 'b')
        assert first == _content(folder / 'c')


@pytest.mark.slow
@examples(25)
@given(graphs())
def test_parts_together_are_the_graph(drawn):
    _check_parts(drawn)


@examples(8)
@given(graphs())
def test_same_seed_same_bytes(drawn):
    _check_bytes(drawn)
