"""A partition folder appears complete or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from partition_files import tree

from pyg_sar.partition import memmap
from pyg_sar.partition.partition_graph import partition_graph

ERRORS = [KeyboardInterrupt, OSError, RuntimeError]


def _fail_late(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """Makes writing fail in the middle of a file of the second part."""
    filled, fill = [], memmap._fill

    def fail_late(place, rows):
        filled.append(place)
        if len(filled) == 30:
            raise error('the disk is full')
        fill(place, rows)

    monkeypatch.setattr(memmap, '_fill', fail_late)


@pytest.mark.parametrize('error', ERRORS)
@pytest.mark.parametrize('has_old', [False, True])
def test_interrupted_run_changes_nothing(graph, tmp_path, monkeypatch, error, has_old):
    if has_old:
        partition_graph(graph, 2, tmp_path / 'out')
    before = tree(tmp_path)
    _fail_late(monkeypatch, error)
    with pytest.raises(error, match='the disk is full'):
        partition_graph(graph, 3, tmp_path / ('out' if has_old else 'new/deeper/out'), force=True)
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ['out'] * has_old


def test_failed_swap_puts_the_old_partition_back(graph, tmp_path, monkeypatch):
    partition_graph(graph, 2, tmp_path / 'out')
    before = tree(tmp_path)
    rename = Path.rename

    def fail_for_new(self: Path, target: Path) -> Path:
        if self.suffix == '.tmp':
            raise OSError('no')
        return rename(self, target)

    monkeypatch.setattr('pyg_sar.utils.durable._exchange', lambda a, b: False)
    monkeypatch.setattr(Path, 'rename', fail_for_new)
    with pytest.raises(OSError, match='no'):
        partition_graph(graph, 3, tmp_path / 'out', force=True)
    assert tree(tmp_path) == before


def test_not_empty_needs_force(graph, tmp_path, check_partition):
    out = tmp_path / 'out'
    partition_graph(graph, 2, out)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match='force=True'):
        partition_graph(graph, 3, out)
    assert tree(tmp_path) == before
    partition_graph(graph, 3, out, force=True)
    check_partition(out, graph, 3)
    assert [*tmp_path.iterdir()] == [out]


def test_force_replaces_partitions_only(graph, tmp_path):
    (tmp_path / 'thesis.tex').write_text('years of work')
    with pytest.raises(ValueError, match=r'META\.json'):
        partition_graph(graph, 2, tmp_path, force=True)
    assert tree(tmp_path) == {'thesis.tex': b'years of work'}
    with pytest.raises(ValueError, match="'root'"):
        partition_graph(graph, 2, tmp_path / 'thesis.tex', force=True)


@pytest.mark.parametrize('force', [False, True])
def test_empty_folder_is_used(graph, tmp_path, check_partition, force):
    """As one that is not there; other users may read both, as any file made with this umask."""
    out, ordinary = tmp_path / 'out', tmp_path / 'ordinary'
    out.mkdir()
    ordinary.mkdir()
    partition_graph(graph, 2, out, force=force)
    check_partition(out, graph, 2)
    partition_graph(graph, 2, tmp_path / 'new')
    assert {path.stat().st_mode for path in tmp_path.iterdir()} == {ordinary.stat().st_mode}
    assert {*tmp_path.iterdir()} == {out, ordinary, tmp_path / 'new'}


def test_relative_path_and_symbolic_link(graph, tmp_path, check_partition, monkeypatch):
    monkeypatch.chdir(tmp_path)
    partition_graph(graph, 2, 'out')
    check_partition(tmp_path / 'out', graph, 2)
    (tmp_path / 'real').mkdir()
    os.symlink(tmp_path / 'real', tmp_path / 'link')
    partition_graph(graph, 3, 'link')
    assert (tmp_path / 'link').is_symlink()
    check_partition(tmp_path / 'real', graph, 3)


def test_mount_point_is_refused_before_any_work(graph):
    with pytest.raises(ValueError, match='mount point'):
        partition_graph(graph, 2, '/proc')


@pytest.mark.parametrize('name', ['', 'part_0'])
def test_the_current_folder_is_not_replaced(graph, tmp_path, monkeypatch, name):
    """A shell in it would be left in a deleted one."""
    out = tmp_path / 'out'
    if name:
        partition_graph(graph, 2, out)
    (out / name).mkdir(exist_ok=True)
    monkeypatch.chdir(out / name)
    before = tree(tmp_path)
    with pytest.raises(ValueError, match=f"call this from '{tmp_path}', with 'out'"):
        partition_graph(graph, 2, '..' if name else '.', force=True)
    assert tree(tmp_path) == before
    partition_graph(graph, 2, 'sub')
    assert (out / name / 'sub' / 'META.json').is_file()
