"""Hypothesis strategies for tensors of any type, shape and layout, and for values of a graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

PLAIN = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]
"""Types that models compute with, after .double()."""

OTHER = [
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]

ROWS = [(), (1,), (3,), (0,), (2, 2)]
"""Shapes of a row."""

GRAPH_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(
        st.one_of(st.integers(), st.text(max_size=3), st.floats(allow_nan=False)), max_size=40
    ),
    st.sampled_from([torch.tensor(3), torch.tensor(2.5, dtype=torch.float64), torch.tensor(True)]),
)
"""What belongs to a graph and not to its nodes or edges."""


def bits(values: Tensor) -> Tensor:
    """The bytes of a dense tensor, for comparisons that tell NaNs and zeros of any kind apart."""
    return values.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors are equal bit by bit, in shape and in type."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int, *, tame: bool) -> Tensor:
    """A tensor of random bytes, or with `tame` of small numbers that models can compute with."""
    generator = torch.Generator().manual_seed(seed)
    if tame:
        numbers = torch.randint(0, 4, shape, generator=generator)
        if dtype.is_floating_point:
            return (torch.randn(shape, generator=generator) + numbers).to(dtype)
        return (numbers > 1 if dtype is torch.bool else numbers).to(dtype)
    count = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    raw[: dtype.itemsize] = 255  # a NaN, and one of no usual bits
    raw = raw % 2 if dtype is torch.bool else raw
    return raw.view(dtype).view(shape)


@st.composite
def rows(draw: st.DrawFn, count: int, *, tame: bool = False) -> Tensor:
    """A contiguous tensor with `count` rows."""
    dtype = draw(st.sampled_from(PLAIN if tame else [*PLAIN, *OTHER]))
    shape = draw(st.sampled_from(ROWS))
    return filled((count, *shape), dtype, draw(st.integers(0, 99)), tame=tame)


def _steps(values: Tensor) -> Tensor:
    """Every other row of a larger tensor."""
    larger = torch.zeros(2 * values.size(0) + 1, *values.shape[1:], dtype=values.dtype)
    raw = larger[1::2][: values.size(0)]
    raw.copy_(values)
    return raw


def _inference(values: Tensor) -> Tensor:
    with torch.inference_mode():
        return values.clone()


DENSE = {
    'contiguous': lambda v: v.clone(),
    'reversed in memory': lambda v: (
        v.clone().permute(*range(v.dim())[::-1]).contiguous().permute(*range(v.dim())[::-1])
    ),
    'every other row': _steps,
    'at an offset': lambda v: torch.cat([v[:1], v])[min(1, v.size(0)) :],
    'inference': _inference,
}
"""Ways for the same numbers to lie in memory."""

FLOATING = {
    'leaf': lambda v: v.clone().requires_grad_(),
    'result': lambda v: v.clone().requires_grad_() * 1,
    'parameter': lambda v: torch.nn.Parameter(v.clone()),
}


def _uncoalesced(values: Tensor) -> Tensor:
    """Every entry twice, the second time 0."""
    coo = values.to_sparse()
    return torch.sparse_coo_tensor(
        coo.indices().repeat(1, 2),
        torch.cat([coo.values(), torch.zeros_like(coo.values())]),
        coo.shape,
        check_invariants=False,
    )


SPARSE = {
    'coo': lambda v: v.to_sparse(),
    'uncoalesced': _uncoalesced,
    'csr': lambda v: v.to_sparse_csr(),
    'csc': lambda v: v.to_sparse_csc(),
}


@st.composite
def laid_out(draw: st.DrawFn, values: Tensor) -> Tensor:
    """The same dense tensor, elsewhere or otherwise in memory, possibly with a gradient."""
    ways = dict(DENSE)
    if values.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ways |= FLOATING
    return ways[draw(st.sampled_from(sorted(ways)))](values)


@st.composite
def sparse(draw: st.DrawFn, count: int) -> tuple[Tensor, Tensor]:
    """A sparse tensor of `count` rows, and the same one dense."""
    dtype = draw(st.sampled_from([*PLAIN, torch.complex64]))
    values = filled((count, draw(st.integers(1, 3))), dtype, draw(st.integers(0, 99)), tame=True)
    return SPARSE[draw(st.sampled_from(sorted(SPARSE)))](values), values
