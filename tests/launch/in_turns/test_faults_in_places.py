"""Faults at twenty places of a run: an error with the folder, nothing left; it can run again."""

from __future__ import annotations

import errno
import os
import resource
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from alike import assert_bits
from few import few
from launch.in_turns.faults import Calls, fails, nothing_is_left, places, small_program
from launch.in_turns.programs import NUM_RANKS, in_turns, train
from launch.in_turns.test_user_programs import saved
from torch import Tensor

from pyg_sar.comm import ranks, vote
from pyg_sar.launch.in_turns import spill_file
from pyg_sar.launch.in_turns.run import run_in_turns
from pyg_sar.launch.in_turns.spill_file import SpillFile

slow = pytest.mark.slow
FAULTS = {'pwrite': errno.ENOSPC, 'preadv': errno.EIO, 'posix_fallocate': errno.ENOSPC}


@pytest.fixture(autouse=True)
def grows_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """By single pages, so that a small file grows at many places."""
    monkeypatch.setattr(spill_file, '_GROWTH', 4096)


CASES = [('small', 5), *(pytest.param(each, 20, marks=slow) for each in ('small', 'training'))]


@pytest.mark.parametrize('name', few(FAULTS))
@pytest.mark.parametrize(('kind', 'number'), CASES)
def test_errors_of_the_disk(tmp_path, folder, monkeypatch, name, kind, number):
    (spill := tmp_path / 'spill').mkdir()
    monkeypatch.setattr(os, name, counted := Calls(name))
    program = small_program if kind == 'small' else partial(train, str(folder), 'dropout')
    run = partial(in_turns, program, spill, 2 if kind == 'small' else NUM_RANKS)
    expected = run().results
    assert counted.count >= 20
    for place in places(counted.count, number):
        with monkeypatch.context() as patch, nothing_is_left(tmp_path):
            patch.setattr(os, name, Calls(name, place, fails(FAULTS[name])))
            with pytest.raises(OSError, match='evicted memory') as found:
                run()
            assert (found.value.errno, found.value.filename) == (FAULTS[name], str(spill))
        assert_bits(run().results, expected)


def test_a_disk_that_never_answers_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives on is not empty, and nobody takes it for what it was."""
    for place in places(40):
        left: list[Tensor] = []

        def program(left: list[Tensor] = left) -> None:
            left += [torch.ones(1000), torch.ones(1000, dtype=torch.int64)]
            for _ in range(10):
                vote.agree(0)
                for each in left[:]:
                    each.sum()

        with monkeypatch.context() as patch, nothing_is_left(tmp_path):
            calls = Calls('preadv')

            def read(*args: Any, calls: Calls = calls, place: int = place) -> Any:
                if calls.count >= place:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return calls(*args)

            patch.setattr(os, 'preadv', read)
            with pytest.raises(OSError, match='reading evicted memory'):
                in_turns(program, tmp_path)
        assert len(left) == 4
        for tensor in left:
            is_there = torch.equal(tensor, torch.ones_like(tensor))
            assert is_there or bool((tensor.isnan() | (tensor == -1)).all())


def test_a_limit_of_the_size_of_files(tmp_path: Path) -> None:
    expected = in_turns(small_program, tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for num_pages in places(expected.figures.disk // 4096)[:-1]:
        with nothing_is_left(tmp_path):
            resource.setrlimit(resource.RLIMIT_FSIZE, (num_pages * 4096, hard))
            try:
                with pytest.raises(OSError, match='File too large') as found:
                    in_turns(small_program, tmp_path)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert found.value.filename == str(tmp_path)
    assert in_turns(small_program, tmp_path).results == expected.results


@pytest.mark.parametrize('number', [1, pytest.param(20, marks=slow)])
def test_a_run_that_is_killed(tmp_path: Path, folder: Path, monkeypatch: Any, number: int) -> None:
    """Nothing of it is left but checkpoints, and the last of them goes on."""
    (spill := tmp_path / 'spill').mkdir()

    def run(root: Path, num_epochs: int) -> list[Any]:
        program = partial(saved, str(folder), str(root), num_epochs)
        return in_turns(program, spill, NUM_RANKS).results

    expected = run(tmp_path / 'whole', 3)
    monkeypatch.setattr(os, 'pwrite', counted := Calls('pwrite'))
    run(tmp_path / 'counted', 2)
    for place in places(counted.count, number) if number > 1 else [counted.count // 2]:
        root, child = tmp_path / f'killed {place}', os.fork()
        if child == 0:
            os.pwrite = Calls('pwrite', place, lambda: os.kill(os.getpid(), signal.SIGKILL))
            run(root, 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert os.listdir(spill) == []
        left = [int(path.name[-6:]) for path in root.glob('epoch-*')]
        found = run(root, 2 - max(left, default=-1))
        assert found[0][0] == max(left, default=-1) + 1
        assert_bits([each[2:] for each in found], [each[2:] for each in expected])


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """Before anything runs; later the folder is not needed."""
    (spill := tmp_path / 'spill').mkdir()
    expected, ran = in_turns(small_program, spill).results, []

    def without_folder() -> list[float]:
        if ranks.rank() == 0 and spill.exists():
            spill.rmdir()
        return small_program()

    assert in_turns(without_folder, spill).results == expected
    spill.mkdir(mode=0o555)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        with pytest.raises(PermissionError, match='making a file') as found:
            in_turns(lambda: ran.append(1), spill)
    finally:
        os.seteuid(user)
    assert (found.value.filename, ran) == (str(spill), [])


@pytest.mark.parametrize('memory', few([80000, 0]))
def test_forks(tmp_path: Path, memory: int) -> None:
    """A child reads what is here, or is refused; whatever it makes, and when, harms nobody."""
    reference = in_turns(partial(_forking, -1), tmp_path, memory=memory).results
    codes: set[int] = set()
    for place in places(STEPS, 6):
        with nothing_is_left(tmp_path):
            found = in_turns(partial(_forking, place), tmp_path, memory=memory).results
        for (values, code), (same, _) in zip(found, reference, strict=True):
            assert_bits(values, same)
            codes.update(code)
    assert codes == ({0, 42} if memory == 0 else {0})


STEPS = 20


def _forking(place: int) -> tuple[list[Tensor], list[int]]:
    """Holds tensors; forks at one of its steps, and lets the child go on some steps later."""
    held = [torch.full((1000,), 10.0 * ranks.rank() + i) for i in range(5)]
    children: list[Child] = []
    codes: list[int] = []
    for step in range(STEPS):
        if step == place:
            children = [Child(held, reads) for reads in (True, False)]
        held[step % 5] += 1
        vote.agree(0)
        held[(step + 2) % 5] = held[(step + 2) % 5] + 1
        if step == min(place + 3, STEPS - 1):
            codes = [child.end() for child in children]
    return [each.clone() for each in held], codes


class Child:
    """A fork that reads what it holds, or makes tensors, once it may."""

    def __init__(self, held: list[Tensor], reads: bool) -> None:
        wait, self._go = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            code = 1
            try:
                os.close(self._go)
                os.read(wait, 1)
                made = [torch.full((1000,), -7.0) for _ in range(30)]
                code = 0 if all(bool((each == -7).all()) for each in made) else 3
                for each in held if reads else ():
                    values = each + 0
                    code = code if bool((values == values[0]).all()) and values[0] >= 0 else 4
            except RuntimeError as error:
                code = 42 if 'a fork of it' in str(error) else 5
            finally:
                os._exit(code)
        os.close(wait)

    def end(self) -> int:
        """Lets it go on, and gives its exit code."""
        os.write(self._go, b'.')
        os.close(self._go)
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])


def test_short_reads_and_writes_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = in_turns(small_program, tmp_path).results
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, 'pwrite', lambda fd, part, at: write(fd, part[:100], at))
    monkeypatch.setattr(os, 'preadv', lambda fd, parts, at: read(fd, [parts[0][:100]], at))
    assert in_turns(small_program, tmp_path).results == expected


def test_a_file_that_was_cut_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'preadv', lambda fd, parts, at: 0)
    with pytest.raises(OSError, match='the file is shorter'):
        in_turns(small_program, tmp_path)


def test_a_folder_that_is_none_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / 'file').touch()
    ran: list[int] = []
    for folder in (tmp_path / 'missing', tmp_path / 'file'):
        with pytest.raises(OSError, match='making a file') as found:
            in_turns(lambda: ran.append(1), folder)
        assert found.value.filename == str(folder)
    assert ran == []


def test_space_is_reserved_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(os, 'posix_fallocate', Calls('posix_fallocate', 0, fails(errno.ENOSPC)))
    ran: list[int] = []
    with pytest.raises(OSError, match='reserving 1000000000 bytes') as found:
        in_turns(lambda: ran.append(1), tmp_path, reserve='1GB')
    assert found.value.errno == errno.ENOSPC
    assert ran == []


def test_nothing_is_left(tmp_path: Path) -> None:
    def program() -> list[str]:
        small_program()
        return os.listdir(tmp_path)

    assert in_turns(program, tmp_path).results == [[], []]


def test_places_are_used_again(tmp_path: Path) -> None:
    file = SpillFile(tmp_path)
    places = [file.take(size) for size in (100, 5000, 5000, 1 << 20)]
    assert len(set(places)) == 4
    file.give_back(places[1], 5000)
    assert file.take(5001) == places[1]
    file.close()


def test_arguments_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'memory' must be bytes"):
        in_turns(small_program, tmp_path, memory=-1)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(ValueError, match="'host_memory' is for programs on a GPU"):
        in_turns(small_program, tmp_path, host_memory='1GB')
    with pytest.raises(ValueError, match="'spill' must be a folder where there is no GPU"):
        in_turns(small_program, None)
    with pytest.raises(FileNotFoundError):
        run_in_turns(small_program, tmp_path / 'no parts', memory=0, spill=tmp_path)
    assert os.listdir(tmp_path) == []
