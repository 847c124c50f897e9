"""What ranks tell each other travels as JSON, and nothing that is read is unpickled freely."""

from __future__ import annotations

import ast
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import Tensor

from pyg_sar.comm.plain_values import decode, encode
from pyg_sar.comm.vote import agree

PACKAGE = Path(__file__).parents[2] / 'pyg_sar'
VALUES: list[Any] = [
    None,
    True,
    -(10**30),
    0.1,
    math.inf,
    'a "text" \u20ac',
    [],
    (1, (2.0, 'x'), [None]),
    {1, 2},
    frozenset({1}),
    {'x': {1: (2,)}, (1, 'y'): [torch.float64], None: False},
    {'tuple': [1]},
    torch.bfloat16,
]
TENSORS = [
    torch.arange(6, dtype=torch.int32).view(2, 3),
    torch.tensor([math.nan, -0.0], dtype=torch.float64),
    torch.zeros(0, 3, dtype=torch.bool),
    torch.tensor(1.5, dtype=torch.bfloat16),
]


@pytest.mark.parametrize('value', VALUES, ids=repr)
def test_values_come_back_equal_and_of_their_types(value: Any) -> None:
    found = decode(encode(value))
    assert repr(found) == repr(value)
    assert found == value


@pytest.mark.parametrize('tensor', TENSORS, ids=lambda t: str(t.dtype))
def test_tensors_come_back_to_the_bit(tensor: Tensor) -> None:
    found = decode(encode((tensor,)))[0]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    bits = [t.reshape(-1).view(torch.uint8) for t in (found, tensor)]
    assert torch.equal(*bits)


def test_numbers_of_numpy_become_plain_ones() -> None:
    assert decode(encode([np.int64(3), np.float32(0.5)])) == [3, 0.5]


@pytest.mark.parametrize(
    'value', [object(), print, Path('x'), b'bytes'], ids=lambda value: type(value).__name__
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match='expected plain values'):
        encode({'x': [value]})


@pytest.mark.parametrize(
    'text',
    [b'', b'{', b'{"object": 1}', b'{}', b'{"dtype": "load"}', b'{"tensor": 1}', pickle.dumps(1)],
)
def test_other_texts_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match='expected plain values as JSON'):
        decode(text)


def _agree() -> list[Any]:
    return agree(VALUES[torch.distributed.get_rank() * 5])


def test_ranks_agree() -> None:
    assert run_ranks(_agree, 3) == [[VALUES[0], VALUES[5], VALUES[10]]] * 3


def test_no_pickle_in_the_library() -> None:
    """Object collectives unpickle what other ranks send, and torch and NumPy unpickle if asked."""
    for path in PACKAGE.rglob('*.py'):
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
            if not isinstance(node, ast.Call):
                continue
            name = ast.unparse(node.func)
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert not name.endswith(('_object', '_object_list')), (path, name)
            assert name not in ('pickle.load', 'pickle.loads', 'eval', 'exec'), (path, name)
            if name == 'torch.load' and path.name != 'launch.py':  # what its own ranks return
                assert options.get('weights_only') == 'True', path
            if name in ('np.load', 'np.lib.format.read_array'):
                assert options.get('allow_pickle') == 'False', path
