"""What a checkpoint cannot give back is refused when it is saved, by its place and its type."""

from __future__ import annotations

import enum
import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from on_ranks import on_ranks
from torch.optim import lr_scheduler as lr

from pyg_sar import load_checkpoint, save_checkpoint

Point = namedtuple('Point', 'x y')
Color = enum.Enum('Color', 'RED')
NUMPY = np.float64(0.7)
WRONG: dict[str, tuple[Any, str]] = {
    'a number': ({'best': NUMPY}, r"numpy.float64 in extra\['best'\]\): save float\(value\)"),
    'in lists': ({'a': [1, (2, {'b': NUMPY})]}, r"extra\['a'\]\[1\]\[1\]\['b'\]\): save float"),
    'a key': ({np.int64(3): 1}, r'numpy.int64 in the keys of extra\): save int'),
    'a bool': ({'a': np.bool_(1)}, r'save bool'),
    'an array': ({'a': np.ones(3)}, r'numpy.ndarray in .*save torch.from_numpy'),
    'a path': ({'a': Path('b')}, r"Path in extra\['a'\]\): save str"),
    'an enum': ({'a': Color.RED}, r'Color in .*save value.name'),
    'a named tuple': ({'a': Point(1, 2)}, r'Point in .*save tuple'),
    'a function': ({'a': len}, r'builtin_function_or_method in .*made of'),
    'a repeated number': ({'a': torch.ones(1).expand(9)}, r'torch.Tensor in .*value.clone\(\)'),
}


def _run(**others: Any) -> tuple[Any, Any]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize('name', WRONG)
def test_a_value_that_would_not_be_read_is_named(tmp_path: Path, name: str) -> None:
    extra, message = WRONG[name]
    with pytest.raises(ValueError, match=f"^'extra' cannot be saved: expected .*{message}"):
        save_checkpoint(tmp_path, *_run(), epoch=1, extra=extra)
    assert os.listdir(tmp_path) == []


def test_the_remedies_are_read_again(tmp_path: Path) -> None:
    extra = {'best': float(NUMPY), 'a': torch.from_numpy(np.ones(3)), 'b': torch.ones(1).expand(9)}
    extra['b'] = extra['b'].clone()
    save_checkpoint(tmp_path, *_run(), epoch=1, extra=extra)
    torch.testing.assert_close(load_checkpoint(tmp_path, _run()[0]).extra, extra)


@on_ranks(3)
def test_rows_are_told_what_to_save(data, tmp_path):
    with pytest.raises(ValueError, match=r"extra\['out'\].*save pyg_sar.gather"):
        save_checkpoint(tmp_path, *_run(), epoch=1, extra={'out': data.x})


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    'no optimizer': ({'optimizer': None}, "'optimizer' must be the one that trains .* .got None"),
    'optimizers': ({'optimizer': [1]}, "of 'optimizer', of one .*'extra' .got a list"),
    'schedulers': ({'scheduler': [1]}, "of 'scheduler', of one .*'extra' .got a list"),
    'a loader': (
        {'loader': torch.utils.data.DataLoader([1])},
        "'loader', .*leave out .*DataLoader",
    ),
    'a fraction': ({'epoch': 1.0}, r"'epoch' must be a whole number .got 1\.0"),
}


@pytest.mark.parametrize('name', ARGUMENTS)
def test_other_arguments_are_named(tmp_path: Path, name: str) -> None:
    (model, optimizer), (changed, message) = _run(), ARGUMENTS[name]
    given: dict[str, Any] = {'epoch': 1, 'optimizer': optimizer, **changed}
    with pytest.raises(ValueError, match=message):
        save_checkpoint(tmp_path, model, **given)
    assert os.listdir(tmp_path) == []
    save_checkpoint(tmp_path, model, optimizer, epoch=np.int64(1))
    if name == 'optimizers':
        with pytest.raises(ValueError, match=message):
            load_checkpoint(tmp_path, model, **changed)


SCHEDULERS = {
    'StepLR': lambda o: lr.StepLR(o, 3),
    'CosineAnnealingLR': lambda o: lr.CosineAnnealingLR(o, 10),
    'SequentialLR(LinearLR, StepLR)': lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o), lr.StepLR(o, 3)], [2]
    ),
    'SequentialLR(LinearLR, ExponentialLR)': lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o), lr.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize('other', SCHEDULERS)
@pytest.mark.parametrize('name', SCHEDULERS)
def test_another_scheduler_is_refused_before_anything_is_changed(tmp_path, name, other):
    model, optimizer = _run()
    save_checkpoint(tmp_path, model, optimizer, epoch=1, scheduler=SCHEDULERS[name](optimizer))
    model, optimizer = _run()
    scheduler, weight = SCHEDULERS[other](optimizer), model.weight.clone()
    before = str(scheduler.state_dict())
    if name == other:
        assert load_checkpoint(tmp_path, model, optimizer, scheduler).epoch == 1
        return
    with pytest.raises(ValueError, match='expected the state of ') as told:
        load_checkpoint(tmp_path, model, optimizer, scheduler)
    assert str(told.value).endswith(f'expected the state of {other} (got {name})')
    assert torch.equal(model.weight, weight)
    assert str(scheduler.state_dict()) == before
