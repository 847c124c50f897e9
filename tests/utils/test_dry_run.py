"""A snapshot finds what has changed, and nothing else, and sets it back."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pyg_sar.utils.dry_run import Snapshot


class Table(dict[str, Any]):
    """A container that a program has made."""


def _module() -> torch.nn.Module:
    module = torch.nn.Linear(2, 2)
    held: dict[str, Any] = {
        'generator': torch.Generator().manual_seed(1),
        'python': random.Random(0),
        'old': np.random.RandomState(0),
        'new': np.random.default_rng(0),
        'columns': np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        'nothing': np.empty((0, 3)),
        'objects': np.array([None, 'x'], dtype=object),
        'day': np.array('2020-01-01', dtype='M8[D]'),
        'list': [1],
        'queue': deque([1], maxlen=3),
        'set': {1},
        'dict': {'a': torch.ones(2), 'b': 2},
        'table': Table(x=[1]),
        'space': SimpleNamespace(a=1),
    }
    for name, value in held.items():
        setattr(module, name, value)
    return module


def test_nothing_has_changed() -> None:
    assert Snapshot(_module()).restore() == []


def test_all_is_set_back() -> None:
    module: Any = _module()
    snapshot = Snapshot(module)

    def draw() -> list[float]:
        of_torch = torch.rand((), generator=module.generator).item()
        return [of_torch, module.python.random(), module.old.rand(), module.new.random()]

    first = draw()
    module.columns[1, 2] = module.day[...] = module.table['y'] = module.space.a = 9
    module.list.append(2)
    module.queue.extend([2, 3, 4])
    module.set.add(2)
    module.dict['a'] = 1
    module.table['x'].append(3)
    module.more, module.bias = 1, None
    changed = {'generator', 'python', 'old', 'new', 'columns', 'day', 'list', 'queue', 'set'}
    assert {*snapshot.restore()} == changed | {'dict', 'table', 'space', 'more'}
    assert draw() == first
    assert module.columns.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert str(module.day) == '2020-01-01'
    assert (module.list, module.queue, module.set) == ([1], deque([1]), {1})
    assert module.dict['a'].tolist() == [1, 1]
    assert (module.table, module.space.a) == ({'x': [1]}, 1)
    assert not hasattr(module, 'more')
