"""Calls of every name of torch.Tensor, and of all that may make something of a tensor.

A call takes what is given: rows of a graph that is cut, or the plain tensors of the whole. Which
arguments fit is found out with the plain ones.
"""

from __future__ import annotations

import copy
import io
import json
import math
import operator
import pickle
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from some_functions import made_functions
from torch import Tensor

from pyg_sar.rows.patches import ask_for_rows
from pyg_sar.rows.registry import names as words

ask_for_rows()  # as load_shard does: makers below are looked up once


class Given:
    """What calls take: tensors of a kind, and plain ones beside them.

    Attributes:
        one: A new tensor of the kind.
        same: Another one.
        whole: The plain tensor of the whole that `same` stands for.
    """

    def __init__(self, kind: str, data: Any, whole: Any) -> None:
        first, second = KINDS[kind]
        self.kind, self.data, self.plain_data = kind, data, whole
        self.one, self.same = first(data), second(data)
        self.plain, self.whole = first(whole), second(whole)

    @property
    def mask(self) -> Any:
        return self.one != 1

    @property
    def local_index(self) -> Any:
        return torch.zeros_like(self.one, dtype=torch.int64)

    @property
    def weight(self) -> Tensor:
        return torch.linspace(-1, 1, 3 * self.plain.size(-1)).view(-1, 3).to(self.plain.dtype)

    @property
    def vector(self) -> Tensor:
        return torch.linspace(-1, 1, self.plain.size(-1)).to(self.plain.dtype)


def _leaf(data: Any) -> Any:
    out = data.x.float().requires_grad_()
    (out * out).sum().backward()
    return out


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    'x': (lambda d: d.x.float(), lambda d: d.x.float() + 1),
    'x[:, 0]': (lambda d: d.x[:, 0].clone(), lambda d: d.x[:, 1] + 1),
    'mask': (lambda d: d.train_mask.clone(), lambda d: ~d.train_mask),
    'y': (lambda d: d.y.clone(), lambda d: d.y + 1),
    'n_id': (lambda d: d.n_id.clone(), lambda d: d.n_id.clone()),
    'edge_index': (lambda d: d.edge_index.clone(), lambda d: d.edge_index.clone()),
    'edge_index[0]': (lambda d: d.edge_index[0].clone(), lambda d: d.edge_index[1].clone()),
    'edge_attr': (lambda d: d.edge_attr.clone(), lambda d: d.edge_attr + 1),
    'leaf': (_leaf, lambda d: d.x.float() + 1),
}
"""Two tensors of each kind."""


@dataclass(frozen=True)
class Call:
    """``run(given)``; what it is of, and how it is called.

    Attributes:
        fails: Whether it raises on plain tensors.
    """

    name: str
    kind: str
    how: str
    run: Callable[[Given], Any]
    fails: bool = False

    @property
    def label(self) -> tuple[str, str, str]:
        return self.name, self.kind, self.how


Arguments = Callable[[Given], tuple[Any, ...]]

ROWS: dict[str, Arguments] = {
    '(rows)': lambda g: (g.same,),
    '(rows, rows)': lambda g: (g.same, g.same),
    '(mask)': lambda g: (g.mask,),
    '(mask, 1)': lambda g: (g.mask, 1),
    '(mask, rows)': lambda g: (g.mask, g.same[g.mask]),
    '(rows, mask)': lambda g: (g.same, g.mask),
    '(mask rows, rows)': lambda g: (g.mask, g.same),
    '(0, places, rows)': lambda g: (0, g.places, g.same),
    '(0, places, rows, sum)': lambda g: (0, g.places, g.same, 'sum'),
    '(0, rows)': lambda g: (0, g.places),
    '(rows, 1, sum)': lambda g: (g.same, 1, 'sum'),
    '([rows])': lambda g: ((g.same,),),
}

PLAIN: dict[str, Arguments] = {
    '(whole)': lambda g: (g.whole,),
    '(whole, whole)': lambda g: (g.whole, g.whole),
    '(weight)': lambda g: (g.weight,),
    '(vector)': lambda g: (g.vector,),
    '(weight, weight)': lambda g: (g.weight[:, 0].abs(), g.weight),
    '(0, ids)': lambda g: (0, torch.tensor([1, 0, 1])),
    '(0, ids, 1)': lambda g: (0, torch.tensor([1, 0]), 1),
    '(0, ids, plain)': lambda g: (0, torch.tensor([1, 0]), g.whole[:2]),
    '(0, ids, plain, mean)': lambda g: (0, torch.tensor([1, 0]), g.whole[:2], 'mean'),
    '(ids)': lambda g: (torch.tensor([1, 0]),),
    '(ids, plain)': lambda g: (torch.tensor([1, 0]), g.whole[:2]),
    '((ids), plain)': lambda g: ((torch.tensor([1, 0]),), g.whole[:2]),
    '(plain)': lambda g: (torch.tensor([0.5, 1.0, 2.0]),),
}

NUMBERS: dict[str, Arguments] = {
    '(0)': lambda g: (0,),
    '(1)': lambda g: (1,),
    '(0.5)': lambda g: (0.5,),
    '(0, 1)': lambda g: (0, 1),
    '(2, 0)': lambda g: (2, 0),
    '(0, 0, 2)': lambda g: (0, 0, 2),
    '(2, 0, 1)': lambda g: (2, 0, 1),
    '(0, 1, 2, 0)': lambda g: (0, 1, 2, 0),
    '(-2, 1)': lambda g: (-2, 1),
    '(0, 1.5)': lambda g: (0, 1.5),
}

OTHERS: dict[str, Arguments] = {
    '(float64)': lambda g: (torch.float64,),
    '(sizes)': lambda g: (g.plain.shape,),
    '(-1)': lambda g: (-1,),
    '(0, sizes)': lambda g: (0, (1, g.plain.size(0))),
    '(0, [-1])': lambda g: (0, (-1, 1)),
    "('cpu')": lambda g: ('cpu',),
    '(function)': lambda g: (lambda value: value,),
    '(plain, function)': lambda g: (g.whole, lambda a, b: a + b),
    '(rows, function)': lambda g: (g.same, lambda a, b: a + b),
    '(slice)': lambda g: (slice(1, 5),),
    '(all, 0)': lambda g: ((slice(None), 0),),
    '(all, 1)': lambda g: (slice(None), 1),
    '(slice, plain)': lambda g: (slice(0, 2), g.whole[:2]),
    '(all, rows)': lambda g: (slice(None), g.same),
    '(list)': lambda g: ([0, 1],),
    '(number, list)': lambda g: (0, [1]),
    '(strides)': lambda g: ((2,), (1,)),
    "('')": lambda g: ('',),
    '(None)': lambda g: (None,),
    '(Tensor)': lambda g: (Tensor,),
    '(4)': lambda g: (4,),
    '({})': lambda g: ({},),
    '(names)': lambda g: (('a', 'b')[: g.plain.dim()],),
    '(3, -1, 2)': lambda g: (3, -1, 2),
    '([(0, 1)])': lambda g: ([(0, 1)],),
    '(scale)': lambda g: (0.5, 0, torch.qint8),
    '(scales)': lambda g: (torch.tensor([0.5]), torch.tensor([0]), 0, torch.qint8),
}

GROUPS: tuple[tuple[dict[str, Arguments], int], ...] = (
    ({'()': lambda g: ()}, 1),
    (ROWS, 2),
    (PLAIN, 1),
    (NUMBERS, 2),
    (OTHERS, 1),
)
"""Arguments, and with how many of each group a method is called."""

OF_OBJECTS = words(
    '__class__ __init__ __init_subclass__ __new__ __subclasshook__ __getattribute__ __setattr__ '
    '__delattr__ __dict__ __module__ __doc__ __weakref__ __annotations__'
)
"""What any object of Python has."""

OF_CLASSES = words(
    '__torch_function__ __torch_dispatch__ _python_dispatch __array_priority__ _dtensor__new__ '
    '_make_subclass _make_wrapper_subclass __dlpack_c_exchange_api__'
)
"""How torch finds the class of a tensor, and makes tensors of none: no values are read."""

OF_MEMORY = words(
    '_backward_hooks _fix_weakref _use_count _cdata _has_symbolic_sizes_strides '
    '_clear_non_serializable_cached_data'
)
"""Bookkeeping of torch about an object, which no program reads."""

OF_OTHERS = words('_view_func _view_func_unsafe _rev_view_func_unsafe')
"""What AOTAutograd calls to make a view again."""

SKIPPED = OF_OBJECTS | OF_CLASSES | OF_MEMORY | OF_OTHERS

NAMES = sorted({*dir(Tensor)} - SKIPPED)


def calls_of_name(name: str, kind: str, whole: Any) -> list[Call]:
    """Calls that work on plain tensors; one that does not."""
    static = getattr(Tensor, name)
    if not callable(static):
        return calls_of_attribute(name, kind, whole)
    found: list[Call] = []
    failing: Call | None = None
    for arguments, limit in GROUPS:
        kept = 0
        for how, args in arguments.items():
            if kept == limit:
                break
            call = Call(name, kind, how, _method(name, args))
            if works(call, whole):
                found.append(call)
                kept += 1
            elif failing is None:
                failing = Call(name, kind, how, call.run, fails=True)
    for how, args in ROWS.items():
        call = Call(name, kind, f'plain{how}', _of_plain(name, args))
        if works(call, whole):
            found.append(call)
            break
    return found + ([failing] if failing and kind in ('x', 'x[:, 0]', 'edge_index') else [])


def calls_of_attribute(name: str, kind: str, whole: Any) -> list[Call]:
    """Reads an attribute, and sets it."""
    calls = [Call(name, kind, 'read', lambda g: getattr(g.one, name))]
    values: dict[str, Callable[[Given], Any]] = {
        'rows': lambda g: g.same,
        'whole': lambda g: g.whole,
        'None': lambda g: None,
        'True': lambda g: True,
        'False': lambda g: False,
    }
    for how, value in values.items():
        calls.append(Call(name, kind, f'= {how}', _setter(name, value)))
    calls.append(Call(name, kind, 'plain = rows', _setter_of_plain(name)))
    return [each for each in calls if works(each, whole)]


def _method(name: str, args: Arguments) -> Callable[[Given], Any]:
    return lambda g: getattr(g.one, name)(*args(g))


def _of_plain(name: str, args: Arguments) -> Callable[[Given], Any]:
    def run(g: Given) -> Any:
        return getattr(g.plain, name)(*args(g)), g.plain

    return run


def _setter(name: str, value: Callable[[Given], Any]) -> Callable[[Given], Any]:
    def run(g: Given) -> Any:
        setattr(g.one, name, value(g))
        return getattr(g.one, name)

    return run


def _setter_of_plain(name: str) -> Callable[[Given], Any]:
    def run(g: Given) -> Any:
        setattr(g.plain, name, g.same)
        return getattr(g.plain, name), g.plain

    return run


_unchanged: dict[str, Given] = {}
"""What was given to a call that failed, and so may be given again: a third of the time."""


def works(call: Call, whole: Any) -> bool:
    """Whether a call works on the plain tensors of the whole."""
    given = _unchanged.pop(call.kind, None) or Given(call.kind, whole, whole)
    try:
        torch.manual_seed(0)
        call.run(given)
    except Exception:
        _unchanged[call.kind] = given
        return False
    return True


def _saved(t: Any) -> Any:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _class_of(t: Any, name: str) -> Any:
    return getattr(torch, f'{name}Tensor')


def _ids(count: int) -> Tensor:
    return torch.arange(count).repeat(2, 1)


def _legacy(module: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for name in sorted(words('Float Double Long Int Short Char Byte Bool Half BFloat16')):
        kind = getattr(module, f'{name}Tensor', None)
        if kind is None:
            continue
        if module is torch:
            yield f'torch.{name}Tensor', kind
        else:
            yield f'torch.sparse.{name}Tensor', lambda t, k=kind: k(_ids(len(t)), t)


def _sparse(name: str) -> Callable[[Any], Any]:

    def run(t: Any) -> Any:
        n, function = len(t), getattr(torch, name)  # the form that asks for the class
        if name == 'sparse_coo_tensor':
            return torch.sparse_coo_tensor(_ids(n), t)
        if 'bs' in name:
            return function(torch.arange(n + 1), torch.arange(n), t.view(n, -1, 1))
        if name == 'sparse_compressed_tensor':
            return function(
                torch.arange(n + 1),
                torch.arange(n),
                t.reshape(n, -1)[:, 0],
                layout=torch.sparse_csr,
            )
        return function(torch.arange(n + 1), torch.arange(n), t.reshape(n, -1)[:, 0])

    return run  # fmt: skip


def _of_places(name: str) -> Callable[[Any], Any]:
    """A sparse matrix whose places are rows."""

    def run(t: Any) -> Any:
        n, function = len(t), getattr(torch, name)
        if name == 'sparse_coo_tensor':
            return function(t if t.dim() == 2 else torch.stack([t, t]), torch.ones(t.size(-1)))
        # As many entries as rows; where they are is asked of the rows.
        places = t.reshape(-1)[:n] * 0
        kwargs: dict[str, Any] = {'size': (n, 1)}
        if 'compressed' in name:
            kwargs['layout'] = torch.sparse_csr
        ones = torch.ones(n, 1, 1) if 'bs' in name else torch.ones(n)
        if 'csc' in name or 'bsc' in name:
            kwargs['size'] = (1, n)
        return function(torch.arange(n + 1), places, ones, **kwargs)

    return run


def _array_like(t: Any) -> Any:
    out = np.zeros(tuple(t.shape))
    out[...] = t
    return out


def _in_data(t: Any) -> Any:
    plain = torch.zeros(1).to(t.dtype)
    plain.data = t
    return plain


def _out(t: Any) -> Any:
    plain = torch.zeros(tuple(t.shape), dtype=t.dtype)
    torch.add(t, t, out=plain)
    return plain


def _loaded(t: Any) -> Any:
    module = torch.nn.Module()
    module.register_buffer('t', torch.zeros(tuple(t.shape), dtype=t.dtype))
    module.load_state_dict({'t': t})
    return module.t


def _assigned(t: Any) -> Any:
    module = torch.nn.Module()
    module.register_buffer('t', torch.zeros(tuple(t.shape), dtype=t.dtype))
    module.load_state_dict({'t': t}, assign=True)
    return module.t


SPARSE = sorted(
    words(
        'sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor sparse_bsc_tensor '
        'sparse_compressed_tensor'
    )
)

MAKERS: dict[str, Callable[[Any], Any]] = {
    'torch.tensor': lambda t: torch.tensor(t),
    'torch.tensor(data=)': lambda t: torch.tensor(data=t),
    'torch.tensor [t]': lambda t: torch.tensor([t, t]),
    'torch.tensor [t[0]]': lambda t: torch.tensor([t[0], t[1]]),
    'torch.tensor list': lambda t: torch.tensor(t.tolist()),
    'torch.as_tensor': torch.as_tensor,
    'torch.as_tensor dtype': lambda t: torch.as_tensor(t, dtype=torch.float64),
    'torch.as_tensor [t]': lambda t: torch.as_tensor([t, t]),
    'torch.asarray': torch.asarray,
    'torch.scalar_tensor': lambda t: torch.scalar_tensor(t[0]),
    'torch.Tensor': torch.Tensor,
    'torch.Tensor list': lambda t: torch.Tensor([*t]),
    'torch.Tensor storage': lambda t: torch.Tensor(t.untyped_storage()),
    'type(t)': lambda t: type(t)(t),
    'torch.autograd.Variable': torch.autograd.Variable,
    'torch.nn.Parameter': lambda t: torch.nn.Parameter(t, requires_grad=t.is_floating_point()),
    'torch.nn.Buffer': lambda t: torch.nn.Buffer(t),
    'torch.Tensor.as_subclass': lambda t: Tensor.as_subclass(t, Tensor),
    **dict(_legacy(torch)),
    **dict(_legacy(torch.sparse)),
    **{f'torch.{name}': _sparse(name) for name in SPARSE},
    **{f'torch.{name} of places': _of_places(name) for name in SPARSE},
    'torch.from_dlpack': torch.from_dlpack,
    'torch.utils.dlpack.to_dlpack': lambda t: torch.utils.dlpack.to_dlpack(t),
    'torch.from_numpy': lambda t: torch.from_numpy(t.numpy()),
    'torch.frombuffer': lambda t: torch.frombuffer(memoryview(t.numpy()), dtype=t.dtype),
    'torch.nested.nested_tensor': lambda t: torch.nested.nested_tensor([t]),
    'torch.nested.as_nested_tensor': lambda t: torch.nested.as_nested_tensor([t]),
    'torch.nested.nested_tensor_from_jagged': lambda t: torch.nested.nested_tensor_from_jagged(
        t, torch.tensor([0, 3, t.size(0)])
    ),
    'torch.nested.masked_select': lambda t: torch.nested.masked_select(t, t != 1),
    'masked_tensor': lambda t: torch.masked.masked_tensor(t, t != 1).to_tensor(0),
    'plain.data =': _in_data,
    'plain.new_tensor': lambda t: torch.zeros(1).new_tensor(t),
    'plain.new': lambda t: torch.zeros(1, dtype=t.dtype).new(t),
    'plain.set_': lambda t: torch.zeros(1, dtype=t.dtype).set_(t),
    'plain.type_as': lambda t: torch.arange(3).type_as(t),
    'plain.to': lambda t: torch.arange(3).to(t),
    'plain.type': lambda t: torch.arange(3).type(t.type()),
    'plain.copy_': lambda t: torch.zeros(tuple(t.shape), dtype=t.dtype).copy_(t),
    'plain.resize_as_': lambda t: torch.zeros(1, dtype=t.dtype).resize_as_(t).zero_(),
    'plain.fill_': lambda t: torch.zeros(3).fill_(t[0]),
    'plain.expand_as': lambda t: torch.ones(1).expand_as(t),
    'torch.add out': _out,
    'load_state_dict': _loaded,
    'load_state_dict assign': _assigned,
    'np.asarray': np.asarray,
    'np.array': np.array,
    'np.fromiter': lambda t: np.fromiter(t, dtype=float),
    'np.from_dlpack': np.from_dlpack,
    'array[...] =': _array_like,
    'np.add': lambda t: np.add(t, 1),
    'np.shape': np.shape,
    'np.size': np.size,
    'np.ndim': np.ndim,
    'np.ones * t': lambda t: np.ones(tuple(t.shape)) * t,
    'np.float64 * t': lambda t: np.float64(2) * t,
    'np.ones[t]': lambda t: np.arange(400.0)[t],
    'np.random.choice': lambda t: np.random.default_rng(0).choice(t),
    'copy.copy': copy.copy,
    'copy.deepcopy': copy.deepcopy,
    'pickle': lambda t: pickle.loads(pickle.dumps(t)),
    'torch.save': _saved,
    'json.dumps': lambda t: json.dumps(t.tolist()),
    'list': list,
    'set': lambda t: len({*t.tolist()}),
    '[*t]': lambda t: [*t],
    'iter': lambda t: next(iter(t)),
    'zip': lambda t: [*zip(t, t, strict=True)],
    'reversed': lambda t: [*reversed(t)],
    'len': len,
    'bool': bool,
    'float': float,
    'float t[0]': lambda t: float(t.reshape(-1)[0]),
    'int': int,
    'complex': complex,
    'round': round,
    'abs': abs,
    'divmod': lambda t: divmod(t, 2),
    'pow': lambda t: pow(t, 2),
    'rpow': lambda t: 2**t,
    'sum': sum,
    'min': min,
    'in': lambda t: 1 in t,
    'in list': lambda t: [*t.tolist()].count(1),
    't in [t]': lambda t: any(t is each for each in [t]),
    'hex': lambda t: hex(t[0]),
    'operator.index': operator.index,
    'range': lambda t: range(t[0]),
    'list[t[1]]': lambda t: [*range(400)][t[1]],
    'slice': lambda t: torch.arange(9)[t[1] : 5],
    'math.sqrt': lambda t: math.sqrt(abs(t.reshape(-1)[1])),
    'math.fsum': math.fsum,
    'random.choice': lambda t: random.Random(0).choice(t),
    'struct.pack': lambda t: struct.pack('f', t[0]),
    'bytes': bytes,
    'memoryview': memoryview,
    'torch.is_tensor': torch.is_tensor,
    'torch.is_nonzero': torch.is_nonzero,
    'torch.equal': lambda t: torch.equal(t, t),
    'torch.typename': torch.typename,
    'torch.testing.assert_close': lambda t: torch.testing.assert_close(t, t),
    'torch.UntypedStorage': lambda t: torch.UntypedStorage(t.tolist()),
    'torch.Size': torch.Size,
    'torch.zeros size': lambda t: torch.zeros(t[1]),
    'torch.full': lambda t: torch.full((2,), t.reshape(-1)[1]),
    'torch.arange': lambda t: torch.arange(t[1]),
    'torch.normal': lambda t: torch.normal(t.float(), 0.0),
    'torch.complex': lambda t: torch.complex(t, t),
    'torch.polar': lambda t: torch.polar(t, t),
    'torch.broadcast_tensors': lambda t: torch.broadcast_tensors(t, torch.ones(1)),
    'torch.quantize_per_tensor': lambda t: torch.quantize_per_tensor(
        t, 0.5, 0, torch.qint8
    ).dequantize(),
    'torch.stack list': lambda t: torch.stack([*t]),
    'torch.cat plain': lambda t: torch.cat([t[:2], torch.ones_like(t[:2])]),
    'pad_sequence': lambda t: torch.nn.utils.rnn.pad_sequence([t, t]),
    'pack_sequence': lambda t: torch.nn.utils.rnn.pack_sequence([t, t]).data,
    'pack_padded_sequence': lambda t: (
        torch.nn.utils.rnn.pack_padded_sequence(t.unsqueeze(1), torch.tensor([len(t)])).data
    ),
    'parameters_to_vector': lambda t: torch.nn.utils.parameters_to_vector([t]),
    'clip_grad_norm_': lambda t: torch.nn.utils.clip_grad_norm_([t], 1.0),
    'default_collate': lambda t: torch.utils.data.default_collate([t, t]),
    'one_hot': torch.nn.functional.one_hot,
    'Embedding.from_pretrained': lambda t: torch.nn.Embedding.from_pretrained(t)(
        torch.tensor([1, 0])
    ),
    'Linear of t': lambda t: torch.nn.functional.linear(torch.ones(2, t.size(-1)).to(t.dtype), t),
    'multiprocessing': lambda t: torch.multiprocessing.reductions.reduce_tensor(t),
    **made_functions(),
}
"""What makes something of a tensor, or of a list of it, or takes one for a number."""


def _maker(name: str) -> Callable[[Given], Any]:
    return lambda g: MAKERS[name](g.one)


def calls_of_maker(name: str, kind: str, whole: Any) -> list[Call]:
    """A call of a maker that works on the plain tensor; else one that does not."""
    call = Call(name, kind, 'made', _maker(name))
    return [Call(name, kind, 'made', call.run, fails=not works(call, whole))]
