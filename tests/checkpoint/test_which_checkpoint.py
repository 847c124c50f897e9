"""Which checkpoint a folder means: the newest in it, itself, none yet; or a wrong folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from on_ranks import on_ranks

import pyg_sar
from pyg_sar import load_checkpoint, save_checkpoint
from pyg_sar.comm.ranks import rank


def _run(root: Path, epochs: int = 2) -> None:
    """A run whose weights are the number of the epoch."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(1, epochs + 1):
        torch.nn.init.constant_(model.weight, epoch)
        save_checkpoint(root, model, optimizer, epoch=epoch)


def _loaded(root: Path) -> tuple[int, float] | None:
    """The epoch that was found, and the weights that were set."""
    model = torch.nn.Linear(2, 1)
    last = load_checkpoint(root, model)
    if last is None:
        return None
    assert (last.path / 'model.pt').is_file()
    return last.epoch, model.weight[0, 0].item()


def test_a_checkpoint_itself_is_loaded_whatever_its_name(tmp_path: Path) -> None:
    root = tmp_path / 'run'
    _run(root)
    assert _loaded(root / 'epoch-000001') == (1, 1)
    shutil.copytree(root / 'epoch-000001', tmp_path / 'best')
    assert _loaded(tmp_path / 'best') == (1, 1)
    (tmp_path / 'link').symlink_to(root / 'epoch-000001')
    assert _loaded(tmp_path / 'link') == (1, 1)
    assert _loaded(root) == (2, 2)


def test_nothing_is_written_into_a_checkpoint(tmp_path: Path) -> None:
    _run(tmp_path / 'run')
    one = tmp_path / 'run' / 'epoch-000001'
    before = os.listdir(one)
    with pytest.raises(
        ValueError, match=f"is one itself.: give the folder around it, '{one.parent}'"
    ):
        _run(one)
    assert os.listdir(one) == before


def test_one_that_holds_another_is_not_guessed(tmp_path: Path) -> None:
    _run(tmp_path, 2)
    shutil.move(tmp_path / 'epoch-000002', tmp_path / 'epoch-000001')
    with pytest.raises(ValueError, match='which is one and holds epoch-000002'):
        _loaded(tmp_path / 'epoch-000001')
    assert _loaded(tmp_path) == (1, 1)


@pytest.mark.parametrize(
    'name', ['', 'train.log', 'logs/events', 'model.pt', '.epoch-000001.a.tmp/m']
)
def test_a_run_may_begin_beside_other_files(tmp_path: Path, name: str) -> None:
    assert _loaded(tmp_path / 'absent') is None
    if name:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert _loaded(tmp_path) is None


def test_a_folder_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    root = tmp_path / 'runs' / 'a'
    _run(root)
    with pytest.raises(ValueError, match=f"has checkpoints in '{root}' alone"):
        _loaded(root.parent)
    with pytest.raises(ValueError, match='complete checkpoint'):  # which may be gone
        _loaded(root / 'epoch-000009')
    (root / 'epoch-000001').rename(tmp_path / 'best')
    with pytest.raises(ValueError, match=f"has checkpoints in '{tmp_path}/[br]"):
        _loaded(tmp_path)
    (tmp_path / 'best' / 'checkpoint.json').unlink()  # a copy of tensors alone
    with pytest.raises(ValueError, match=r'without checkpoint\.json'):
        _loaded(tmp_path / 'best')


@on_ranks(3, 0)
def test_all_ranks_load_a_checkpoint_itself_or_raise(tmp_path):
    model = pyg_sar.DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters())
    path = save_checkpoint(tmp_path, model, optimizer, epoch=1)
    other = torch.nn.Linear(2, 1)
    assert load_checkpoint(path, other).epoch == 1
    assert torch.equal(other.weight, model.weight)
    with pytest.raises(ValueError, match='is one itself') as told:
        save_checkpoint(path, model, optimizer, epoch=2)
    assert ('rank 0: ' in str(told.value)) is (rank() > 0)
