"""What the machine can do at most: move memory, multiply matrices, take exponentials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyg_sar.ops import linear

Run = Callable[[], Tensor]

PRODUCTS = ('forward', 'weight', 'input')
"""Of a linear layer: its output, and the gradients of its weight and of its input."""


class Stream:
    """Copy ``a = b`` and triad ``a = b + s c`` on arrays of `num_bytes`, beyond any cache."""

    def __init__(self, num_bytes: int) -> None:
        self.a, self.b, self.c = (torch.ones(num_bytes // 4) for _ in range(3))
        self.copy_bytes, self.triad_bytes = 2 * num_bytes, 3 * num_bytes

    def runs(self) -> dict[str, Run]:
        return {
            'copy': lambda: self.a.copy_(self.b),
            'triad': lambda: torch.add(self.b, self.c, alpha=0.5, out=self.a),
        }


def product_runs(num_rows: int, width: int, num_columns: int) -> dict[str, Run]:
    """The ``PRODUCTS`` of a linear layer from `width` to `num_columns`.

    By oneDNN where it is faster, else by MKL into memory there is.
    """
    x, gradient = torch.randn(num_rows, width), torch.randn(num_rows, num_columns)
    weight = torch.randn(num_columns, width)
    if linear.is_faster():
        runs = (
            partial(linear.linear, x, weight),
            partial(linear.gradient_of_weight, gradient, x),
            partial(linear.linear, gradient, weight.t().contiguous()),
        )
        return dict(zip(PRODUCTS, runs, strict=True))
    outs = torch.empty_like(gradient), torch.empty_like(weight), torch.empty_like(x)
    factors = (x, weight.t()), (gradient.t(), x), (gradient, weight)
    return {
        name: partial(torch.mm, *of, out=out)
        for name, of, out in zip(PRODUCTS, factors, outs, strict=True)
    }


def gather_bytes(num_edges: int, num_rows: int, num_features: int, num_weights: int = 0) -> int:
    """What a sum over edges has to move, in float32.

    Args:
        num_edges: Each reads a row, its index and its weights.
        num_rows: Rows of the result, written once.
        num_features: Numbers in a row.
        num_weights: Weights of an edge.
    """
    return 4 * (num_edges * (num_features + 1 + num_weights) + num_rows * num_features)


def seconds_of(runs: dict[str, Run]) -> dict[str, float]:
    """Runs all, one after another."""
    seconds = {}
    for name, run in runs.items():
        start = time.perf_counter()
        run()
        seconds[name] = time.perf_counter() - start
    return seconds


def limits(
    *, stream_bytes: int, num_rows: int, products: list[tuple[int, int]], num_exponentials: int
) -> Iterator[dict[str, Any]]:
    """A program for a team: measures the machine again and again.

    Args:
        stream_bytes: Of each array of the triad.
        num_rows: Rows of the products.
        products: Widths of the linear layers' inputs and outputs.
        num_exponentials: How many are taken at once; none with 0.

    Yields:
        Seconds of a byte of the triad, of an exponential, and of every product:
        ``products[width, num_columns]['forward']``.
    """
    stream = Stream(stream_bytes)
    runs = {widths: product_runs(num_rows, *widths) for widths in products}
    numbers = torch.randn(max(num_exponentials, 1))
    out = torch.empty_like(numbers)
    result: dict[str, Any] = {}
    while True:
        yield result
        found = seconds_of({**stream.runs(), 'exp': lambda: torch.exp(numbers, out=out)})
        result = {
            'triad': found['triad'] / stream.triad_bytes,
            'exponential': found['exp'] / numbers.numel(),
            'products': {widths: seconds_of(of) for widths, of in runs.items()},
        }
