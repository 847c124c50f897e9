"""Ways to damage a folder: bytes, structure, whole files, and content made to do harm."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Folder:
    """A folder on disk that can be set back to what it was.

    Args:
        root: Where it is written.
        files: Content by name.
        other: Content by name of a folder of the same layout, to mix in.
    """

    def __init__(self, root: Path, files: dict[str, bytes], other: dict[str, bytes]) -> None:
        self.root, self.files, self.other = root, files, other
        self.touched: set[str] = set()
        for name in files:
            self._restore(name)

    def read(self, name: str) -> bytes:
        """The present content of an ordinary file, else nothing."""
        path = self.root / name
        is_ordinary = path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24
        return path.read_bytes() if is_ordinary else b''

    def write(self, name: str, content: bytes) -> None:
        """Replaces a file."""
        self.remove(name)
        (self.root / name).write_bytes(content)

    def remove(self, name: str) -> Path:
        """Leaves nothing under a name, and gives its path."""
        self.touched.add(name)
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    def restore(self) -> None:
        """Sets back what was touched."""
        for name in self.touched:
            self.remove(name)
            self._restore(name)
        self.touched = set()

    def _restore(self, name: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files[name])


NUMBERS = (0, 1, -1, 2, 7, 255, 2**31 - 1, 2**31, 2**62, -(2**63), 10**30)
ODD = (None, True, '', 'x', '..', '../../etc', '/etc/passwd', [], {}, [[]], 1.5, float('nan'))


def flip(rng: random.Random, content: bytes) -> bytes:
    """Some bits."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 8, 40))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def cut(rng: random.Random, content: bytes) -> bytes:
    """A piece taken out, often the end."""
    start = rng.randrange(len(content) + 1)
    end = rng.choice((len(content), rng.randrange(start, len(content) + 1), start + 1))
    return content[:start] + content[end:]


def insert(rng: random.Random, content: bytes) -> bytes:
    """Bytes put in."""
    start = rng.randrange(len(content) + 1)
    more = rng.choice((rng.randbytes(rng.randrange(1, 9)), content[:64], b'\0' * 4096))
    return content[:start] + more + content[start:]


def splice(rng: random.Random, content: bytes) -> bytes:
    """A piece written over another place."""
    if len(content) < 2:
        return b'x'
    size = rng.randrange(1, min(len(content), 64))
    source, target = (rng.randrange(len(content) - size + 1) for _ in range(2))
    return content[:target] + content[source : source + size] + content[target + size :]


def change_json(rng: random.Random, content: bytes) -> bytes:
    """One value of a JSON file changed, taken out or put elsewhere."""
    value = json.loads(content)
    for _ in range(rng.choice((1, 1, 2))):
        _change(rng, value, lambda old: rng.choice((*NUMBERS, *ODD)) if rng.random() < 0.8 else old)
    if rng.random() < 0.02:
        return b'[' * 100_000
    return json.dumps(value).encode()


def change_tensors(rng: random.Random, content: bytes) -> bytes:
    """One tensor or value of a file of torch.save changed, taken out or put elsewhere."""
    value = copy.deepcopy(torch.load(io.BytesIO(content), weights_only=False))
    if isinstance(value, Tensor):
        value = _other_tensor(rng, value)
    elif isinstance(value, dict):
        for _ in range(rng.choice((1, 1, 2))):
            _change(rng, value, lambda old: _other_tensor(rng, old))
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _change(rng: random.Random, value: Any, make: Callable[[Any], Any]) -> None:
    places = _places(value)
    if not places:
        return
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.1:
        del holder[key]
    elif what < 0.2:
        other, name = rng.choice(places)
        try:
            holder[key], other[name] = other[name], holder[key]
        except (KeyError, IndexError):
            return
    elif what < 0.25 and isinstance(holder, dict) and isinstance(key, str):
        holder[rng.choice(('_mapping', 'edge_index', 'n_id', '../x', 'num_nodes', 'keys'))] = (
            holder.pop(key)
        )
    else:
        holder[key] = make(holder[key])


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found = []
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], (dict, list)) and depth < 6:
            found += _places(value[key], depth + 1)
    return found


def _other_tensor(rng: random.Random, old: Any) -> Any:
    if not isinstance(old, Tensor) or old.numel() > 1 << 20 or rng.random() < 0.1:
        return rng.choice((*NUMBERS[:-1], *ODD))
    what = rng.randrange(9)
    if what < 4 and old.numel():
        new = old.clone().contiguous()
        for _ in range(rng.choice((1, 1, 3))):
            number = rng.choice((*NUMBERS[:-1], new.numel(), rng.randrange(-3, new.numel() + 3)))
            info = torch.iinfo(new.dtype) if not _is_real(new) else None
            if info is not None and new.dtype != torch.bool:
                number = min(max(number, info.min), info.max)
            new.view(-1)[rng.randrange(new.numel())] = number
        return new
    if what == 4:
        return old[: rng.randrange(old.size(0) + 1)] if old.dim() else old.view(1)
    if what == 5:
        return old.to(rng.choice((torch.int32, torch.int64, torch.float32, torch.bool)))
    if what == 6:
        return torch.zeros((), dtype=old.dtype).expand(rng.choice(((10**12,), (*old.shape, 10**9))))
    if what == 7:
        return rng.choice(
            (
                lambda: old.to_sparse(),
                lambda: torch.nn.Parameter(old.double()),
                lambda: torch.empty(old.shape, dtype=old.dtype, device='meta'),
                lambda: torch.cat([old, old]) if old.dim() else old,
                lambda: old.flip(0) if old.dim() else old,
            )
        )()
    return old.t() if old.dim() == 2 else old.view(-1, 1)


def _is_real(value: Tensor) -> bool:
    return value.is_floating_point() or value.dtype == torch.bool


class Runs:
    """Pickles as a call of something that must never be called."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


def hostile(rng: random.Random, content: bytes, marker: Path) -> bytes:
    """A file that would make the folder `marker` or allocate gigabytes, if one let it."""
    call = rng.choice(
        (
            Runs(os.mkdir, str(marker)),
            Runs(os.system, f'mkdir {marker}'),
            Runs(eval, f'__import__("os").mkdir({str(marker)!r})'),
            Runs(bytearray, 10**11),
            Runs(torch.Tensor, 10**11),
            Runs(torch.UntypedStorage, 10**11),
        )
    )
    pickled = pickle.dumps(rng.choice((call, {'x': call}, [call])), protocol=2)
    if not zipfile.is_zipfile(io.BytesIO(content)) or rng.random() < 0.3:
        return pickled
    try:
        return _with_pickle(rng, content, pickled)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError, OSError):
        return pickled  # what was damaged before is no archive any more


def _with_pickle(rng: random.Random, content: bytes, pickled: bytes) -> bytes:
    out = io.BytesIO()
    bomb = rng.random() < 0.2
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, 'w') as new:
        for info in old.infolist():
            data = old.read(info)
            if info.filename.endswith('.pkl') and not bomb:
                data = pickled
            elif info.filename.endswith(('.pkl', '.npy')) and bomb:
                data = data + b'\0' * (1 << 22)
            kind = zipfile.ZIP_DEFLATED if bomb else zipfile.ZIP_STORED
            new.writestr(info.filename, data, compress_type=kind)
    return out.getvalue()


def change_arrays(rng: random.Random, content: bytes) -> bytes:
    """One array of an .npz file changed, or its header."""
    with np.load(io.BytesIO(content)) as archive:
        arrays = {name: archive[name] for name in archive}
    out = io.BytesIO()
    name = rng.choice(sorted(arrays))
    if rng.random() < 0.5:
        new = _other_tensor(rng, torch.from_numpy(np.array(arrays[name])))
        if isinstance(new, Tensor) and (new.layout != torch.strided or new.is_meta):
            new = None
        is_small = not isinstance(new, Tensor) or new.numel() < 10**6
        if is_small:
            arrays[name] = np.array(new.detach() if isinstance(new, Tensor) else new)
        np.savez(out, **arrays)
        return out.getvalue()
    np.savez(out, **arrays)
    shape = str(arrays[name].shape).encode()
    wide = rng.choice((b'(10000000000,)', b'(-5,)', b'(99999, 99999)', b'()', b'(2,'))
    return out.getvalue().replace(shape, wide, 1)


def odd_file(rng: random.Random, folder: Folder, name: str, outside: Path) -> None:
    """Something else in place of a file."""
    path = folder.remove(name)
    what = rng.randrange(9)
    if what == 0:
        return
    if what == 1:
        os.mkfifo(path)
    elif what == 2:
        path.symlink_to('/dev/zero')
    elif what == 3:
        path.symlink_to('/etc/passwd')
    elif what == 4:
        target = outside / Path(name).name
        target.write_bytes(folder.files[name])
        path.symlink_to(target)
    elif what == 5:
        path.symlink_to(path.name)
    elif what == 6:
        path.mkdir()
    elif what == 7:
        path.touch()
        os.truncate(path, 1 << 36)  # takes no space on the disk
    else:
        folder.write(name, folder.other.get(name, b''))
