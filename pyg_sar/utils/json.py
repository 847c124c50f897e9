"""Plain values of all ranks, as JSON: what comes from the network is never unpickled.

The object collectives of ``torch.distributed`` unpickle, which may run any code of the sender.
"""

from __future__ import annotations

import json
import numbers
from typing import Any

import torch
from torch import Tensor

from pyg_sar.utils.checksum import as_bytes

_SCALARS = (str, int, float, bool, type(None))
_SEQUENCES: dict[str, Any] = {'list': list, 'tuple': tuple, 'set': set, 'frozenset': frozenset}


def encode(value: Any) -> bytes:
    """JSON that :func:`decode` makes equal values of the same types from.

    Of None, bool, int, float, str, torch.dtype, a dense tensor, or lists, tuples, sets and dicts of
    them; raises TypeError for anything else.
    """
    return json.dumps(_tagged(value)).encode()


def decode(text: bytes) -> Any:
    """The value that was encoded."""
    try:
        return _untagged(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f'expected plain values as JSON (got {error!r})') from error


def _tagged(value: Any) -> Any:
    """`value` in JSON's own types: a list is a list, anything else that is no scalar a dict."""
    if type(value) in _SCALARS:
        return value
    if type(value) is list:
        return [_tagged(item) for item in value]
    kind = type(value).__name__
    if type(value) is _SEQUENCES.get(kind):
        return {kind: [_tagged(item) for item in value]}
    if type(value) is dict:
        return {kind: [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, torch.dtype):
        return {'dtype': str(value).removeprefix('torch.')}
    if type(value) is Tensor:
        content = as_bytes(value.cpu())
        return {'tensor': [_tagged(value.dtype), [*value.shape], content.tolist()]}
    if isinstance(value, (numbers.Integral, numbers.Real)):  # of NumPy
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, str):
        return str(value)
    raise TypeError(f'expected plain values to send to other ranks (got a {type(value).__name__})')


def _untagged(value: Any) -> Any:
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_untagged(item) for item in content)
    if kind == 'dict':
        return {_untagged(key): _untagged(item) for key, item in content}
    if kind == 'dtype':
        dtype = getattr(torch, content)
        if isinstance(dtype, torch.dtype):
            return dtype
    if kind == 'tensor':
        dtype, shape, octets = content
        return torch.tensor(octets, dtype=torch.uint8).view(_untagged(dtype)).view(shape)
    raise ValueError(f"an unknown kind of value, '{kind}'")
