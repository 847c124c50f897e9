"""Ways to damage a file: its bytes, its structure, what it is, and content made to do harm."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**62, -(2**63), 10**30)
ODD = (None, True, '', 'x', '..', '../../etc', '/etc/passwd', [], {}, [[]], 1.5, float('nan'))
NAMES = ('_mapping', 'edge_index', 'n_id', '../x', 'num_nodes', 'keys')

NOT_FILES: dict[str, Callable[[Path, Path], object]] = {
    'pipe': lambda path, outside: os.mkfifo(path),
    'device': lambda path, outside: path.symlink_to('/dev/zero'),
    'link outside': lambda path, outside: path.symlink_to(outside),
    'link to itself': lambda path, outside: path.symlink_to(path.name),
    'folder': lambda path, outside: path.mkdir(),
    'huge and empty': lambda path, outside: (path.touch(), os.truncate(path, 1 << 40)),
}
"""What may have the name of a file, made where none is."""


def damaged_bytes(rng: random.Random, content: bytes) -> bytes:
    """Some bits flipped, or a piece taken out, put in, or written over another place."""
    start, size = rng.randrange(len(content) + 1), rng.randrange(1, 64)
    what = rng.randrange(4)
    if what == 0:
        flipped = bytearray(content)
        for _ in range(rng.choice((1, 1, 1, 2, 8, 40)) if content else 0):
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if what == 1:
        end = rng.choice((len(content), rng.randrange(start, len(content) + 1), start + 1))
        return content[:start] + content[end:]
    if what == 2:
        more = rng.choice((rng.randbytes(size % 8 + 1), content[:64], b'\0' * 4096))
        return content[:start] + more + content[start:]
    source = rng.randrange(len(content) + 1)
    return content[:start] + content[source : source + size] + content[start + size :]


def damaged_structure(rng: random.Random, name: str, content: bytes) -> bytes:
    """Values of a file changed, taken out or put elsewhere; raises what its readers raise."""
    out = io.BytesIO()
    if name.endswith('.json'):
        if rng.random() < 0.02:
            return b'[' * 100_000
        value = json.loads(content)
        _change(rng, value, lambda old: rng.choice((*NUMBERS, *ODD)) if rng.random() < 0.8 else old)
        return json.dumps(value).encode()
    if name.endswith('.pt'):
        value = copy.deepcopy(torch.load(io.BytesIO(content), weights_only=False))
        if isinstance(value, dict):
            _change(rng, value, lambda old: _other_tensor(rng, old))
        torch.save(_other_tensor(rng, value) if isinstance(value, Tensor) else value, out)
        return out.getvalue()
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive}
    key = rng.choice(sorted(arrays))
    shape = str(arrays[key].shape).encode()
    if rng.random() < 0.5:
        new = _other_tensor(rng, torch.from_numpy(arrays[key]))
        is_wide = isinstance(new, Tensor) and new.numel() >= 10**6
        arrays[key] = np.array(None if is_wide else new)
        shape = b'none'
    np.savez(out, **arrays)
    wide = rng.choice((b'(10000000000,)', b'(-5,)', b'(99999, 99999)', b'()', b'(2,'))
    return out.getvalue().replace(shape, wide, 1)


def _change(rng: random.Random, value: Any, make: Callable[[Any], Any]) -> None:
    for _ in range(rng.choice((1, 1, 2))):
        places = _places(value)
        (holder, key), (other, name) = rng.choice(places), rng.choice(places)
        what = rng.random()
        if what < 0.1:
            del holder[key]
        elif what < 0.2:
            holder[key], other[name] = other[name], holder[key]
        elif what < 0.25 and isinstance(holder, dict) and isinstance(key, str):
            holder[rng.choice(NAMES)] = holder.pop(key)
        else:
            holder[key] = make(holder[key])


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    found = []
    for key in value.keys() if isinstance(value, dict) else range(len(value)):
        found.append((value, key))
        if isinstance(value[key], (dict, list)) and depth < 6:
            found += _places(value[key], depth + 1)
    return found


def _other_tensor(rng: random.Random, old: Any) -> Any:
    if not isinstance(old, Tensor) or old.numel() > 1 << 20 or rng.random() < 0.1:
        return rng.choice((*NUMBERS[:-1], *ODD))
    if rng.random() < 0.4 and old.numel():
        new = old.clone().contiguous()
        for _ in range(rng.choice((1, 1, 3))):
            number = rng.choice((*NUMBERS[:-1], new.numel(), rng.randrange(-3, new.numel() + 3)))
            if not new.is_floating_point() and new.dtype != torch.bool:
                info = torch.iinfo(new.dtype)
                number = min(max(number, info.min), info.max)
            new.view(-1)[rng.randrange(new.numel())] = number
        return new
    dtype = rng.choice((torch.int32, torch.int64, torch.float32, torch.bool))
    shape = rng.choice(((10**12,), (*old.shape, 10**9)))
    changes: list[Callable[[], Tensor]] = [
        lambda: old[: rng.randrange(old.size(0) + 1)] if old.dim() else old.view(1),
        lambda: old.to(dtype),
        lambda: torch.zeros((), dtype=old.dtype).expand(shape),
        lambda: old.t() if old.dim() == 2 else old.view(-1, 1),
        lambda: old.to_sparse(),
        lambda: torch.nn.Parameter(old.double()),
        lambda: old.to('meta'),
        lambda: torch.cat([old, old]) if old.dim() else old,
        lambda: old.flip(0) if old.dim() else old,
    ]
    return rng.choice(changes)()


class Calls:
    """Pickles as a call of something that must never be called."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def hostile(rng: random.Random, content: bytes, marker: Path) -> bytes:
    """A file that would make the folder `marker` or allocate gigabytes, if one let it."""
    call = rng.choice(
        (
            Calls(os.mkdir, str(marker)),
            Calls(os.system, f'mkdir {marker}'),
            Calls(eval, f'__import__("os").mkdir({str(marker)!r})'),
            Calls(bytearray, 10**11),
            Calls(torch.Tensor, 10**11),
            Calls(torch.UntypedStorage, 10**11),
        )
    )
    pickled = pickle.dumps(rng.choice((call, {'x': call}, [call])), protocol=2)
    if not zipfile.is_zipfile(io.BytesIO(content)) or rng.random() < 0.3:
        return pickled
    out, is_bomb = io.BytesIO(), rng.random() < 0.2
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, 'w') as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith('.pkl') and not is_bomb:
                data = pickled
            elif info.filename.endswith(('.pkl', '.npy')) and is_bomb:
                data = data + b'\0' * (1 << 22)
            kind = zipfile.ZIP_DEFLATED if is_bomb else zipfile.ZIP_STORED
            new.writestr(info.filename, data, compress_type=kind)
    return out.getvalue()
