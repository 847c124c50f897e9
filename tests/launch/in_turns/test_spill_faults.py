"""The file of what is evicted: its errors name the folder; its places serve again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from launch.in_turns.faults import Calls, fails, small_program

from pyg_sar.launch.in_turns.run import InTurns, play, run_in_turns
from pyg_sar.launch.in_turns.spill_file import SpillFile


def _play(folder: Path, program: Callable[[], Any] = small_program, **options: Any) -> InTurns:
    return play(program, 2, memory=0, spill=folder, least=256, **options)


def test_short_reads_and_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _play(tmp_path).results
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, 'pwrite', lambda fd, part, at: write(fd, part[:100], at))
    monkeypatch.setattr(os, 'preadv', lambda fd, parts, at: read(fd, [parts[0][:100]], at))
    assert _play(tmp_path).results == expected


def test_a_file_that_was_cut_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'preadv', lambda fd, parts, at: 0)
    with pytest.raises(OSError, match='the file is shorter'):
        _play(tmp_path)


def test_a_folder_that_is_none_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    ran: list[int] = []
    for folder in (tmp_path / 'missing', tmp_path / 'file'):
        with pytest.raises(OSError, match='making a file') as found:
            _play(folder, lambda: ran.append(1))
        assert found.value.filename == str(folder)
    assert ran == []


def test_space_is_reserved_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'posix_fallocate', Calls('posix_fallocate', 0, fails(errno.ENOSPC)))
    ran: list[int] = []
    with pytest.raises(OSError, match='reserving 1000000000 bytes') as found:
        _play(tmp_path, lambda: ran.append(1), reserve='1GB')
    assert found.value.errno == errno.ENOSPC
    assert ran == []


def test_nothing_is_left(tmp_path: Path) -> None:
    def program() -> list[str]:
        small_program()
        return os.listdir(tmp_path)

    assert _play(tmp_path, program).results == [[], []]


def test_places_are_used_again(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    places = [file.take(size) for size in (100, 5000, 5000, 1 << 20)]
    assert len(set(places)) == 4
    file.give_back(places[1], 5000)
    assert file.take(5001) == places[1]
    file.close()


def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'memory' must be bytes"):
        play(small_program, 2, memory=-1, spill=tmp_path)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(ValueError, match="'host_memory' is for programs on a GPU"):
        play(small_program, 2, memory=0, spill=tmp_path, host_memory='1GB')
    with pytest.raises(ValueError, match="'spill' must be a folder where there is no GPU"):
        play(small_program, 2, memory=0)
    with pytest.raises(FileNotFoundError):
        run_in_turns(small_program, tmp_path / 'no parts', memory=0, spill=tmp_path)
    assert os.listdir(tmp_path) == []
