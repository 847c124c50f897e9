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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import made_functions
import numpy as np
import torch
from expressions import expressions
from torch import Tensor

from pyg_sar.rows.patches import ask_for_rows
from pyg_sar.rows.registry import names as words

ask_for_rows()  # as load_shard does: makers below are looked up once


class Given:
    """What calls take, by the names that expressions use: tensors of a kind, and plain ones.

    Attributes:
        one: A new tensor of the kind, which a method is of.
        rows: Another one.
        plain: What `one` is on the whole.
        whole: What `rows` is on the whole.
    """

    def __init__(self, kind: str, data: Any, whole: Any) -> None:
        first, second = KINDS[kind]
        self.kind, self.data, self.plain_data = kind, data, whole
        self.one, self.rows = first(data), second(data)
        self.plain, self.whole = first(whole), second(whole)

    @property
    def mask(self) -> Any:
        return self.one != 1

    @property
    def places(self) -> Any:
        return torch.zeros_like(self.one, dtype=torch.int64)

    @property
    def weight(self) -> Tensor:
        return torch.linspace(-1, 1, 3 * self.plain.size(-1)).view(-1, 3).to(self.plain.dtype)

    @property
    def vector(self) -> Tensor:
        return torch.linspace(-1, 1, self.plain.size(-1)).to(self.plain.dtype)

    @property
    def ids(self) -> Tensor:
        return torch.tensor([1, 0])


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


_ROWS = """
rows; rows, rows; mask; mask, 1; mask, rows[mask]; rows, mask; mask, rows; 0, places, rows
0, places, rows, 'sum'; 0, places; rows, 1, 'sum'; (rows,)
"""
_PLAIN = """
whole; whole, whole; weight; vector; weight[:, 0].abs(), weight; 0, torch.tensor([1, 0, 1])
0, ids, 1; 0, ids, whole[:2]; 0, ids, whole[:2], 'mean'; ids; ids, whole[:2]; (ids,), whole[:2]
torch.tensor([0.5, 1.0, 2.0])
"""
_NUMBERS = '0; 1; 0.5; 0, 1; 2, 0; 0, 0, 2; 2, 0, 1; 0, 1, 2, 0; -2, 1; 0, 1.5'
_OTHERS = """
torch.float64; plain.shape; -1; 0, (1, plain.size(0)); 0, (-1, 1); 'cpu'; lambda value: value
whole, lambda a, b: a + b; rows, lambda a, b: a + b; slice(1, 5); (slice(None), 0); slice(None), 1
slice(0, 2), whole[:2]; slice(None), rows; [0, 1]; 0, [1]; (2,), (1,); ''; None; Tensor; 4; {}
('a', 'b')[:plain.dim()]; 3, -1, 2; [(0, 1)]; 0.5, 0, torch.qint8
torch.tensor([0.5]), torch.tensor([0]), 0, torch.qint8
"""
_TABLES = zip((_ROWS, _PLAIN, _NUMBERS, _OTHERS), (2, 1, 2, 1), strict=True)
GROUPS = [([''], 1), *((expressions(table), limit) for table, limit in _TABLES)]
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
        for args in arguments:
            if kept == limit:
                break
            call = Call(name, kind, f'({args})', _called(f'one.{name}', args))
            if works(call, whole):
                found.append(call)
                kept += 1
            elif failing is None:
                failing = Call(name, kind, call.how, call.run, fails=True)
    for args in expressions(_ROWS):
        call = Call(name, kind, f'plain({args})', _called(f'plain.{name}', args, 'plain'))
        if works(call, whole):
            found.append(call)
            break
    return found + ([failing] if failing and kind in ('x', 'x[:, 0]', 'edge_index') else [])


def calls_of_attribute(name: str, kind: str, whole: Any) -> list[Call]:
    """Reads an attribute, and sets it."""
    calls = [Call(name, kind, 'read', lambda g: getattr(g.one, name))]
    for value in ('rows', 'whole', 'None', 'True', 'False'):
        calls.append(Call(name, kind, f'= {value}', _setter(name, 'one', value)))
    calls.append(Call(name, kind, 'plain = rows', _setter(name, 'plain', 'rows')))
    return [each for each in calls if works(each, whole)]


GIVEN = words('one rows plain whole mask places weight vector ids')
"""What expressions of arguments may name of :class:`Given`."""


def _called(method: str, args: str, more: str = '') -> Callable[[Given], Any]:
    code = compile(f'{method}(*({args},))' if args else f'{method}()', method, 'eval')

    def run(g: Given) -> Any:
        names = {name: getattr(g, name) for name in code.co_names if name in GIVEN}
        out = eval(code, globals(), names)
        return (out, names[more]) if more else out

    return run


def _setter(name: str, of: str, value: str) -> Callable[[Given], Any]:
    def run(g: Given) -> Any:
        owner = getattr(g, of)
        setattr(owner, name, getattr(g, value) if value in GIVEN else eval(value))
        return getattr(owner, name), owner

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


def saved(t: Any) -> Any:
    file = io.BytesIO()
    torch.save(t, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def diagonal(count: int) -> Tensor:
    return torch.arange(count).repeat(2, 1)


def sparse(name: str, t: Any) -> Any:
    """A sparse tensor with rows as its values."""
    n, function = len(t), getattr(torch, name)  # the form that asks for the class
    if name == 'sparse_coo_tensor':
        return torch.sparse_coo_tensor(diagonal(n), t)
    ptr, places, options = torch.arange(n + 1), torch.arange(n), {}
    if 'compressed' in name:
        options = {'layout': torch.sparse_csr}
    values = t.view(n, -1, 1) if 'bs' in name else t.reshape(n, -1)[:, 0]
    return function(ptr, places, values, **options)


def sparse_at(name: str, t: Any) -> Any:
    """A sparse matrix whose places are rows."""
    n, function = len(t), getattr(torch, name)
    if name == 'sparse_coo_tensor':
        return function(t if t.dim() == 2 else torch.stack([t, t]), torch.ones(t.size(-1)))
    # As many entries as rows; where they are is asked of the rows.
    options: dict[str, Any] = {'size': (1, n) if 'sc_' in name else (n, 1)}
    if 'compressed' in name:
        options['layout'] = torch.sparse_csr
    ones = torch.ones(n, 1, 1) if 'bs' in name else torch.ones(n)
    return function(torch.arange(n + 1), t.reshape(-1)[:n] * 0, ones, **options)


def in_array(t: Any) -> Any:
    out = np.zeros(tuple(t.shape))
    out[...] = t
    return out


def in_data(t: Any) -> Any:
    plain = torch.zeros(1).to(t.dtype)
    plain.data = t
    return plain


def out_of_add(t: Any) -> Any:
    plain = torch.zeros(tuple(t.shape), dtype=t.dtype)
    torch.add(t, t, out=plain)
    return plain


def loaded(t: Any, **options: bool) -> Any:
    module = torch.nn.Module()
    module.register_buffer('t', torch.zeros(tuple(t.shape), dtype=t.dtype))
    module.load_state_dict({'t': t}, **options)
    return module.t


_MADE = """
torch.tensor(t); torch.tensor(data=t); torch.tensor([t, t]); torch.tensor([t[0], t[1]])
torch.tensor(t.tolist()); torch.as_tensor(t); torch.as_tensor(t, dtype=torch.float64)
torch.as_tensor([t, t]); torch.asarray(t); torch.scalar_tensor(t[0]); torch.Tensor(t)
torch.Tensor([*t]); torch.Tensor(t.untyped_storage()); type(t)(t); torch.autograd.Variable(t)
torch.nn.Parameter(t, requires_grad=t.is_floating_point()); torch.nn.Buffer(t)
Tensor.as_subclass(t, Tensor); torch.from_dlpack(t); torch.utils.dlpack.to_dlpack(t)
torch.from_numpy(t.numpy()); torch.frombuffer(memoryview(t.numpy()), dtype=t.dtype)
torch.nested.nested_tensor([t]); torch.nested.as_nested_tensor([t])
torch.nested.nested_tensor_from_jagged(t, torch.tensor([0, 3, t.size(0)]))
torch.nested.masked_select(t, t != 1); torch.masked.masked_tensor(t, t != 1).to_tensor(0)
in_data(t); torch.zeros(1).new_tensor(t); torch.zeros(1, dtype=t.dtype).new(t)
torch.arange(3).type_as(t); torch.zeros(1, dtype=t.dtype).set_(t); torch.arange(3).to(t)
torch.arange(3).type(t.type()); torch.zeros(tuple(t.shape), dtype=t.dtype).copy_(t)
torch.zeros(3).fill_(t[0]); torch.zeros(1, dtype=t.dtype).resize_as_(t).zero_()
torch.ones(1).expand_as(t); out_of_add(t); loaded(t); loaded(t, assign=True); np.asarray(t)
np.array(t); np.fromiter(t, dtype=float); np.from_dlpack(t); in_array(t); np.add(t, 1); np.shape(t)
np.size(t); np.ndim(t); np.ones(tuple(t.shape)) * t; np.float64(2) * t; np.arange(400.0)[t]
np.random.default_rng(0).choice(t); copy.copy(t); copy.deepcopy(t); pickle.loads(pickle.dumps(t))
saved(t); json.dumps(t.tolist()); list(t); len({*t.tolist()}); [*t]; next(iter(t))
[*zip(t, t, strict=True)]; [*reversed(t)]; len(t); bool(t); float(t); float(t.reshape(-1)[0])
int(t); complex(t); round(t); abs(t); divmod(t, 2); pow(t, 2); 2**t; sum(t); min(t); 1 in t
[*t.tolist()].count(1); any(t is each for each in [t]); hex(t[0]); operator.index(t); range(t[0])
[*range(400)][t[1]]; torch.arange(9)[t[1] : 5]; math.sqrt(abs(t.reshape(-1)[1])); math.fsum(t)
random.Random(0).choice(t); struct.pack('f', t[0]); bytes(t); memoryview(t); torch.is_tensor(t)
torch.is_nonzero(t); torch.equal(t, t); torch.typename(t); torch.testing.assert_close(t, t)
torch.UntypedStorage(t.tolist()); torch.Size(t); torch.zeros(t[1])
torch.full((2,), t.reshape(-1)[1]); torch.arange(t[1]); torch.normal(t.float(), 0.0)
torch.complex(t, t); torch.polar(t, t); torch.broadcast_tensors(t, torch.ones(1))
torch.quantize_per_tensor(t, 0.5, 0, torch.qint8).dequantize(); torch.stack([*t])
torch.cat([t[:2], torch.ones_like(t[:2])]); torch.nn.utils.rnn.pad_sequence([t, t])
torch.nn.utils.rnn.pack_sequence([t, t]).data
torch.nn.utils.rnn.pack_padded_sequence(t.unsqueeze(1), torch.tensor([len(t)])).data
torch.nn.utils.parameters_to_vector([t]); torch.nn.utils.clip_grad_norm_([t], 1.0)
torch.utils.data.default_collate([t, t]); torch.nn.functional.one_hot(t)
torch.nn.Embedding.from_pretrained(t)(torch.tensor([1, 0]))
torch.nn.functional.linear(torch.ones(2, t.size(-1)).to(t.dtype), t)
torch.multiprocessing.reductions.reduce_tensor(t)
"""
_KINDS_OF_NUMBERS = words('Float Double Long Int Short Char Byte Bool Half BFloat16')
SPARSE = [f'sparse_{kind}_tensor' for kind in ('coo', 'csr', 'csc', 'bsr', 'bsc', 'compressed')]

MAKERS = [
    *expressions(_MADE),
    *made_functions.MADE_BY_FUNCTIONS,
    *(f'torch.{n}Tensor(t)' for n in sorted(_KINDS_OF_NUMBERS) if hasattr(torch, f'{n}Tensor')),
    *(
        f'torch.sparse.{n}Tensor(diagonal(len(t)), t)'
        for n in sorted(_KINDS_OF_NUMBERS)
        if hasattr(torch.sparse, f'{n}Tensor')
    ),
    *(f'{function}({name!r}, t)' for name in SPARSE for function in ('sparse', 'sparse_at')),
]
"""What makes something of a tensor, or of a list of it, or takes one for a number."""

_MODULES = {m.__name__: m for m in (copy, json, math, operator, pickle, random, struct)}


def made(expression: str, t: Any) -> Any:
    """What an expression makes of a tensor."""
    return eval(expression, {**vars(made_functions), **globals(), **_MODULES, 't': t})


def calls_of_maker(name: str, kind: str, whole: Any) -> list[Call]:
    """A call of a maker that works on the plain tensor; else one that does not."""
    call = Call(name, kind, 'made', lambda g: made(name, g.one))
    return [Call(name, kind, 'made', call.run, fails=not works(call, whole))]
