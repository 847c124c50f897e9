"""What is measured: the jobs of a block, the kernels that do them, and their peers.

A new kernel of :mod:`pyg_sar.ops` needs one entry in ``JOBS``. Public functions there that no
entry names are listed as not measured.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType

import torch
from machine_limits import Run, gather_bytes
from torch import Tensor

import pyg_sar.ops
from pyg_sar.shard.blocks import Block
from pyg_sar.shard.csr import Segments, make_segments

HEADS = 4


@dataclass(eq=False)
class Work:
    """One block, and the tensors that its kernels take. Transposed, rows and columns change places.

    Attributes:
        rows: Row of the result that every edge adds to, int64 ``[num_edges]``.
        cols: Row of the values that every edge reads, int64 ``[num_edges]``.
        num_rows: Rows of the result.
        num_cols: Rows of the values.
        num_features: Numbers in a row, F.
        is_sorted: Whether `rows` ascends.
    """

    rows: Tensor
    cols: Tensor
    num_rows: int
    num_cols: int
    num_features: int
    is_sorted: bool

    @cached_property
    def values(self) -> Tensor:
        """float32 ``[num_cols, F]``."""
        return torch.randn(self.num_cols, self.num_features)

    @cached_property
    def left(self) -> Tensor:
        """A gradient of the result, float32 ``[num_rows, H, C]``."""
        return self.heads(torch.randn(self.num_rows, self.num_features))

    @cached_property
    def weight(self) -> Tensor:
        """float32 ``[num_edges, H]``, in edge order."""
        return torch.rand(self.rows.numel(), HEADS)

    @cached_property
    def segments(self) -> Segments:
        return make_segments(self.rows, self.cols, self.num_rows, is_sorted=self.is_sorted)

    def heads(self, values: Tensor) -> Tensor:
        """``[N, F]`` as ``[N, H, C]``."""
        return values.view(values.size(0), HEADS, -1)

    def csr(self, weight: Tensor | None) -> Tensor:
        """The block as a sparse matrix ``[num_rows, num_cols]``; `weight` is in edge order."""
        order = torch.argsort(self.rows, stable=True)
        ptr = torch.zeros(self.num_rows + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(self.rows, minlength=self.num_rows), 0, out=ptr[1:])
        entries = torch.ones(self.rows.numel()) if weight is None else weight[order]
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', 'Sparse ')  # in beta; its checks are off
            return torch.sparse_csr_tensor(
                ptr.int(), self.cols[order].int(), entries, (self.num_rows, self.num_cols)
            )


@dataclass(frozen=True)
class Job:
    """One thing that a block needs done.

    Attributes:
        kernel: The function of :mod:`pyg_sar.ops` that does it.
        ours: Makes the call to it.
        peers: Makes the same of others, by name; the first is what ratios are against.
        num_weights: Numbers of every edge and head that move as well.
        num_rows: How often every row of the result's side moves: written, and read.
        directions: In which it is measured.
    """

    kernel: str
    ours: Callable[[Work, Callable[..., Tensor]], Run]
    peers: dict[str, Callable[[Work], Run]]
    num_weights: int = 0
    num_rows: int = 1
    directions: tuple[str, ...] = ('forward', 'transposed')

    def num_bytes(self, work: Work) -> int:
        weights, num_rows = HEADS * self.num_weights, self.num_rows * work.num_rows
        return gather_bytes(work.rows.numel(), num_rows, work.num_features, weights)


def _sum_by_index_add(work: Work) -> Run:
    def run() -> Tensor:
        out = torch.zeros(work.num_rows, work.num_features)
        return out.index_add_(0, work.rows, work.values.index_select(0, work.cols))

    return run


def _sum_by_csr(work: Work) -> Run:
    matrix = work.csr(None)
    return lambda: matrix @ work.values


def _ours_sum(work: Work, kernel: Callable[..., Tensor]) -> Run:
    segments, values = work.segments, work.values
    return lambda: kernel(values, segments)


def _ours_added_sum(work: Work, kernel: Callable[..., Tensor]) -> Run:
    segments, values = work.segments, work.values
    return lambda: kernel(torch.zeros(work.num_rows, work.num_features), values, segments)


def _heads_by_index_add(work: Work) -> Run:
    def run() -> Tensor:
        out = torch.zeros(work.num_rows, work.num_features)
        messages = work.heads(work.values).index_select(0, work.cols) * work.weight.unsqueeze(-1)
        return out.index_add_(0, work.rows, messages.flatten(1))

    return run


def _heads_by_csr(work: Work) -> Run:
    matrices = [work.csr(weight) for weight in work.weight.unbind(1)]

    def run() -> Tensor:
        parts = work.heads(work.values).unbind(1)
        products = [m @ part.contiguous() for m, part in zip(matrices, parts, strict=True)]
        return torch.stack(products, dim=1).flatten(1)

    return run


def _ours_heads(work: Work, kernel: Callable[..., Tensor]) -> Run:
    segments, values, weight = work.segments, work.heads(work.values), work.weight

    def run() -> Tensor:
        out = work.heads(torch.empty(work.num_rows, work.num_features))
        return kernel(out, values, segments, weight, replace=True).flatten(1)

    return run


def _dots_by_gather(work: Work) -> Run:
    def run() -> Tensor:
        right = work.heads(work.values).index_select(0, work.cols)
        return (work.left.index_select(0, work.rows) * right).sum(dim=-1)

    return run


def _ours_dots(work: Work, kernel: Callable[..., Tensor]) -> Run:
    segments, right, left = work.segments, work.heads(work.values), work.left
    return lambda: kernel(torch.empty_like(work.weight), left, right, segments)


def _both_by_gather(work: Work) -> Run:
    sums, dots = _heads_by_index_add(work), _dots_by_gather(work)
    return lambda: (sums(), dots())


def _ours_both(work: Work, kernel: Callable[..., None]) -> Run:
    grad, rows, weight = work.heads(work.values), work.left, work.weight
    edges = torch.stack([work.rows, work.cols])  # transposed, so columns ascend
    sizes, every = (work.num_rows, work.num_cols), slice(0, edges.size(1))
    block = Block(0, *sizes, 0, every, edges, node_order=(None, None))

    def run() -> tuple[Tensor, Tensor]:
        out = work.heads(torch.empty(work.num_rows, work.num_features))
        dots = torch.empty_like(weight)
        kernel(out, dots, grad, rows, block, weight)
        return out.flatten(1), dots

    return run


_SUM_PEERS = {'index_add': _sum_by_index_add, 'sparse.mm CSR': _sum_by_csr}

JOBS = {
    'sum': Job('segment_sums', _ours_sum, _SUM_PEERS),
    'sum, added': Job('add_segment_sums', _ours_added_sum, _SUM_PEERS),
    f'weighted sum, {HEADS} heads': Job(
        'add_weighted_sums',
        _ours_heads,
        {'index_add': _heads_by_index_add, 'sparse.mm CSR': _heads_by_csr},
        num_weights=1,
    ),
    f'gradient of the weights, {HEADS} heads': Job(
        'edge_dots',
        _ours_dots,
        {'gather, multiply': _dots_by_gather},
        num_weights=1,
        directions=('forward',),
    ),
    f'both gradients, {HEADS} heads': Job(
        'weighted_sums_and_dots',
        _ours_both,
        {'index_add; gather, multiply': _both_by_gather},
        num_weights=2,
        num_rows=2,
        directions=('transposed',),
    ),
}


def kernels() -> dict[str, Callable[..., Tensor]]:
    """The public functions of :mod:`pyg_sar.ops`, by name."""
    found = {}
    for info in pkgutil.iter_modules(pyg_sar.ops.__path__):
        module = importlib.import_module(f'{pyg_sar.ops.__name__}.{info.name}')
        for name, value in vars(module).items():
            is_own = isinstance(value, FunctionType) and value.__module__ == module.__name__
            if is_own and not name.startswith('_'):
                found[name] = value
    return found
