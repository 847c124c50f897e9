"""Runs all calls of names_calls.py on ranks and on one process, and compares with plain tensors."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from names_calls import KINDS, MAKERS, NAMES, Call, Given, calls_of_maker, calls_of_name
from on_ranks import parts_of
from op_run import difference
from ranks import run_as_threads
from small_graphs import small_graph
from torch import Tensor

import pyg_sar
from pyg_sar.comm.vote import agree
from pyg_sar.rows.adjacency import Adjacency
from pyg_sar.rows.registry import names as words
from pyg_sar.rows.rows import Rows, plainly
from pyg_sar.rows.slices import slices_read

NUM_PARTS = 3
Label = tuple[str, str, str]

REFUSALS = (ValueError, TypeError, IndexError, NotImplementedError, RuntimeError)

DIFFERENT = {
    '__repr__ __str__ __format__': 'says whose rows they are',
    '__dir__ __sizeof__ __hash__ torch.typename(t)': 'is of the object and its class',
    '_version _base _is_view is_contiguous': 'is of the memory of this rank',
    'data_ptr const_data_ptr': 'is an address; ranks refuse it',
    '__getstate__': 'is what the object remembers',
}
"""What may be another thing for rows than for a plain tensor, and why."""

OF_CLASS = words(' '.join(DIFFERENT)) | {'torch.multiprocessing.reductions.reduce_tensor(t)'}

DRAWS = words(
    'bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial normal_ random_ '
    'uniform_ _philox_normal_ _philox_uniform_ rrelu rrelu_ np.random.default_rng(0).choice(t)'
) | {'torch.normal(t.float(), 0.0)'}
"""Random numbers: their kind and shape are compared."""

EMPTY = words('new_empty new_empty_strided new resize resize_ resize_as resize_as_')
"""New memory, in which anything may be."""


class Verdict(NamedTuple):
    """``equal``, ``refused``, ``WRONG`` or ``PARTS``, and why."""

    status: str
    why: str = ''


@functools.cache
def whole_data() -> Any:
    """The plain graph, with the ids that a cut graph has."""
    data = small_graph()
    data.n_id = torch.arange(data.num_nodes)
    return data


@functools.cache
def calls_of(name: str) -> dict[Label, Call]:
    """Calls of a name, by their labels."""
    found: list[Call] = []
    with quiet():
        for kind in KINDS:
            if kind == 'leaf' and not is_of_leaf(name):
                continue
            find = calls_of_maker if name in MAKERS else calls_of_name
            found += find(name, kind, whole_data())
    return {call.label: call for call in found}


def is_of_leaf(name: str) -> bool:
    """Whether a name is one of gradients."""
    words = ('grad', 'leaf', 'data', 'detach', 'hook', 'copy', 'backward', 'output_nr', 'volatile')
    return any(word in name for word in words)


def labels(part: int = 0, of: int = 1) -> list[Label]:
    """The calls of every `of`-th name."""
    return [label for name in sorted({*NAMES, *MAKERS})[part::of] for label in calls_of(name)]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of what is deprecated or odd."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


MODES = {
    'plain': contextlib.nullcontext,
    'inference': torch.inference_mode,
    'autocast': functools.partial(torch.autocast, 'cpu', torch.bfloat16),
}


@functools.cache
def wanted(mode: str, call: Call) -> Any:
    """What a call gives of plain tensors: the result and the tensor afterwards, or the error."""
    return _called(call, Given(call.kind, whole_data(), whole_data()), mode)


def _called(call: Call, given: Given, mode: str) -> Any:
    torch.manual_seed(0)
    slices_read.value = None
    with MODES[mode]():
        try:
            out = call.run(given)
            # What is of one object is looked at at once: iterators, storages, arrays.
            return 'value', flat(out), flat(given.one)
        except Exception as error:
            return 'error', error, None


_AS_THEY_ARE = (
    *(Tensor, str, bytes, int, float, complex, torch.Size, torch.dtype, torch.device, torch.layout),
    *(type, slice, range),
)


def flat(value: Any) -> list[Any]:
    """A result as tensors, numbers and words."""
    if isinstance(value, _AS_THEY_ARE) or value is None:
        return [value]
    if isinstance(value, (np.ndarray, np.generic)):
        return ['array', torch.from_numpy(np.array(value))]
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return ['storage', value.tolist()]
    if isinstance(value, dict):
        return [each for item in value.items() for part in item for each in flat(part)]
    if isinstance(value, (tuple, list)) or hasattr(value, '__next__'):
        return [type(value).__name__, *(part for each in value for part in flat(each))]
    if type(value).__name__ == 'PyCapsule':
        if 'dltensor' in repr(value):
            return ['capsule', torch.utils.dlpack.from_dlpack(value)]
        return ['capsule']
    return [f'a {type(value).__name__}']


reached: dict[int, int] = {}
"""Where ranks that are threads are, by rank."""


def _verdict(call: Call, data: Any, mode: str) -> Verdict:
    want = wanted(mode, call)
    kind, out, after = _called(call, Given(call.kind, data, whole_data()), mode)
    states = agree(f'{kind}' if kind == 'value' else type(out).__name__)
    if len(set(states)) > 1:
        why = f': {out!r}'[:200] if kind == 'error' else ''
        return Verdict('PARTS', f'{states}{why}')
    if kind == 'error':
        return _of_error(out, want)
    if want[0] == 'error':
        is_of_mode = mode != 'plain' and not call.fails
        return Verdict('equal' if is_of_mode else 'WRONG', f'no error instead of {want[1]!r}')
    try:
        with MODES[mode]():
            why = _difference(call, out, want[1], mode)
            why = why or _difference(call, after, want[2], mode)
    except REFUSALS as error:
        return Verdict('refused', f'{error}')
    return Verdict('WRONG', why) if why else Verdict('equal')


def _of_error(error: Exception, want: Any) -> Verdict:
    text = f'{type(error).__name__}: {error}'
    if want[0] == 'error' and type(error) is type(want[1]):
        return Verdict('equal', text)
    is_bug = not str(error) or 'please report it' in str(error) or 'INTERNAL' in str(error)
    if is_bug or not isinstance(error, REFUSALS):
        return Verdict('WRONG', text)
    return Verdict('refused', text)


def _difference(call: Call, out: list[Any], want: list[Any], mode: str) -> str:
    """What differs; ranks ask in one order, whatever they find."""
    out = [_gathered(each) for each in out]
    if call.name in OF_CLASS:
        return ''
    if len(out) != len(want):
        return f'{len(out)} results instead of {len(want)}'
    for a, b in zip(out, want, strict=True):
        why = _of_two(a, b, call, mode)
        if why:
            return why
    return ''


def _gathered(value: Any) -> Any:
    if isinstance(value, (Rows, Adjacency)):
        requires_grad, is_parameter = value.requires_grad, isinstance(value, torch.nn.Parameter)
        made = pyg_sar.gather(value).detach()
        return _Seen(made, requires_grad, is_parameter)
    return value


class _Seen(NamedTuple):
    values: Tensor
    requires_grad: bool
    is_parameter: bool


def _of_two(a: Any, b: Any, call: Call, mode: str) -> str:
    if not isinstance(b, Tensor):
        is_same = type(a) is type(b) and (a == b or a is b or (a != a and b != b))
        return '' if is_same else f'{a!r} instead of {b!r}'[:200]
    if isinstance(a, Tensor):
        a = _Seen(a.detach(), a.requires_grad, isinstance(a, torch.nn.Parameter))
    if not isinstance(a, _Seen):
        return f'{type(a).__name__} instead of a tensor'
    if (a.requires_grad, a.is_parameter) != (b.requires_grad, isinstance(b, torch.nn.Parameter)):
        return f'requires_grad {a.requires_grad} or being a parameter differs'
    made, want = (_strided(each) for each in (a.values, b.detach()))
    draws = call.name in DRAWS or call.name in EMPTY
    return difference(made, want, 0.05 if mode == 'autocast' else 1e-4, has_values=not draws)


def _strided(value: Tensor) -> Tensor:
    with plainly():
        if value.is_nested:
            return torch.cat([each.reshape(-1) for each in value.unbind()])
        value = value if value.layout == torch.strided else value.to_dense()
        value = value.dequantize() if value.is_quantized else value
        return value.resolve_conj().resolve_neg()


def verdicts_of(
    given: Iterable[Label], *, world_size: int = 3, mode: str = 'plain', cut: str = 'uneven'
) -> dict[Label, Verdict]:
    """Verdicts of all ranks, which are threads; a call that one of them never ends is PARTS."""
    left, found = [*given], {}
    root = str(parts_of(NUM_PARTS, cut))
    with quiet():
        for label in left:
            wanted(mode, calls_of(label[0])[label])
    while left:
        reached.clear()
        try:
            run_as_threads(_note, world_size, root, mode, left)
            count = len(left)
        except Exception as error:
            count = max(reached.values(), default=0)
            found[left[count]] = Verdict('PARTS', f'{type(error).__name__}: {error}')
        done = [_so_far[rank] for rank in range(world_size)]
        for label, *each in zip(left[:count], *done, strict=False):
            found[label] = _of_all(each)
        left = left[count + 1 :]
    return found


_so_far: dict[int, list[Verdict]] = {}


def _note(root: str, mode: str, given: list[Label]) -> None:
    """Notes the verdicts of a rank, which has a part of the graph."""
    rank = pyg_sar.comm.ranks.rank()
    _so_far[rank] = []
    data = pyg_sar.load_shard(root)
    with quiet():
        for number, label in enumerate(given):
            reached[rank] = number
            _so_far[rank].append(_verdict(calls_of(label[0])[label], data, mode))


def _of_all(verdicts: list[Verdict]) -> Verdict:
    statuses = [each.status for each in verdicts]
    for status in ('PARTS', 'WRONG'):
        if status in statuses:
            return verdicts[statuses.index(status)]
    return verdicts[0] if len(set(statuses)) == 1 else Verdict('PARTS', f'{statuses}')


def faults(found: dict[Label, Verdict]) -> dict[Label, Verdict]:
    """What is wrong, or differs between ranks."""
    return {k: v for k, v in found.items() if v.status in ('WRONG', 'PARTS')}
