"""Checks that what is computed for a destination depends on its own in-edges only.

A function may look at other edges in ways that no index shows, such as a mean over all rows. So it
runs on a few edges, each into another destination, and then again with one edge left out or with
the destinations numbered differently. The results of the other edges must not change. A row draws
the same random numbers in all of these runs, whatever rows there are beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_sar.nn.call import Call
from pyg_sar.nn.intercept import MessageError, UnsupportedMessageError, WholeGraphSizes, overridden
from pyg_sar.nn.reductions import BlockMessages
from pyg_sar.nn.sample_edges import (
    NUM_PADDING,
    NUM_SAMPLES,
    UndoneSideEffects,
    samples_of,
    with_padding_edges,
)
from pyg_sar.nn.whole_reads import takes_statistics
from pyg_sar.ops.program import Arguments, no_autocast_cache
from pyg_sar.utils.nested import leaves
from pyg_sar.utils.rng import random_states, seed_random_states

_Values = list[tuple[Tensor, int]]
"""Tensors with their edge or node dimension."""


@no_autocast_cache()
def check_destinations_are_independent(call: Call, seed: int | None) -> None:
    """Checks that messages and their aggregation depend on in-edges of one destination only.

    Numbers are drawn by the seed; None says that none are drawn.
    """
    samples, edge_index = samples_of(call)
    outputs = partial(_outputs, call, seed)
    with _on_samples(call):
        everything, numbers = outputs(samples, edge_index, NUM_SAMPLES)
        if numbers:
            _check_numbers(outputs, samples, edge_index, numbers)
        fewer, _ = outputs(*_without_last(samples, edge_index), NUM_SAMPLES)
        _compare(everything, fewer)
        for sign in (1, -1):
            other, _ = outputs(_with_other_last(samples, sign), edge_index, NUM_SAMPLES)
            _compare(everything, other)
        more, _ = outputs(*with_padding_edges(samples, edge_index), NUM_SAMPLES + 1)
        _compare(everything, more, starts=(NUM_PADDING, 1))
        if not samples.edge:
            return
        # The same edge values on all edges: groups made from them would join the destinations.
        alike = replace(samples, edge=tuple(t[:1].expand_as(t) for t in samples.edge))
        everything, _ = outputs(alike, edge_index, NUM_SAMPLES)
        others = with_padding_edges(*_without_last(alike, edge_index))
        more, _ = outputs(*others, NUM_SAMPLES + 1)
        _compare(everything, more, starts=(NUM_PADDING, 1))


def _check_numbers(
    outputs: Callable[..., Any], arguments: Arguments, edge_index: Tensor, numbers: dict[str, Any]
) -> None:
    """Checks that numbers left on the conv do not depend on the edges."""
    others = [
        (arguments, edge_index),
        (_with_other_floats(arguments, lambda values: values * 0.75), edge_index),
        _without_last(arguments, edge_index),
    ]
    results = [outputs(*other, NUM_SAMPLES)[1] for other in others]
    for name, number in numbers.items():
        if any(result.get(name) != number for result in results):
            raise MessageError(
                f"it sets '{name}' on the conv to a number that depends on the edges it sees"
            )


@no_autocast_cache()
def check_edges_are_independent(call: Call, num_reductions: int, seed: int | None) -> None:
    """Checks that a message, up to that many reductions, depends on its own edge only.

    `seed` is as above.
    """
    samples, edge_index = samples_of(call)
    edge_index[1] = 0

    def reduced(arguments: Arguments, edges: Tensor) -> _Values:
        of_edges = BlockMessages(call, num_reductions, NUM_SAMPLES)
        with UndoneSideEffects(call.conv, call.arguments), _draws(seed, edges, NUM_SAMPLES):
            messages, outputs = of_edges.run(arguments, edges, _of_one_edge)
        dim = call.conv.node_dim
        return [(t, dim) for t in messages] + [(t, 0) for t in outputs]

    with _on_samples(call):
        everything = reduced(samples, edge_index)
        _compare(everything, reduced(*_without_last(samples, edge_index)))
        for sign in (1, -1):
            _compare(everything, reduced(_with_other_last(samples, sign), edge_index))


def _without_last(arguments: Arguments, edge_index: Tensor) -> tuple[Arguments, Tensor]:
    return replace(arguments, edge=tuple(t[:-1] for t in arguments.edge)), edge_index[:, :-1]


def _with_other_last(arguments: Arguments, sign: int) -> Arguments:
    """Arguments with far larger floating values at the last edge (`sign` 1) or smaller (-1).

    Values between 0 and 1 stay between 0 and 1.
    """

    def other(values: Tensor) -> Tensor:
        last = values[-1:]
        within = (last >= 0) & (last <= 1)
        far = sign * (3 * last.abs() + 5)
        return torch.cat([values[:-1], torch.where(within, 0.5 + 0.48 * sign, far)])

    return _with_other_floats(arguments, other)


def _with_other_floats(arguments: Arguments, other: Callable[[Tensor], Tensor]) -> Arguments:
    read = arguments.src, arguments.dst, arguments.edge
    src, dst, edge = (
        tuple(other(t.detach()) if t.is_floating_point() else t for t in group) for group in read
    )
    return Arguments(src, dst, edge, arguments.whole)


def _of_one_edge(logits: Tensor, _: Tensor) -> Tensor:
    return logits.sigmoid()


def _outputs(
    call: Call, seed: int | None, arguments: Arguments, edge_index: Tensor, num_dst: int
) -> tuple[_Values, dict[str, Any]]:
    """Messages and aggregation, or per-edge results, and the numbers that the function sets."""
    with UndoneSideEffects(call.conv, call.arguments) as undone, _draws(seed, edge_index, num_dst):
        values = call.inputs(arguments, edge_index, edge_index[1], num_dst)
        out = call.run(values)
        results = [(out, 0)]
        if call.function == 'message':
            dim = call.conv.node_dim
            results = [(out, dim), (call.aggregate(values, out), dim)]
    return results, undone.numbers


def _draws(seed: int | None, edge_index: Tensor, num_dst: int) -> AbstractContextManager[Any]:
    return nullcontext() if seed is None else _DrawsByRow(seed, edge_index, num_dst)


class _DrawsByRow(TorchDispatchMode):
    """Repeats every draw row by row, with numbers that depend on the seed and the row alone.

    A draw without a row for every edge or destination is refused.
    """

    def __init__(self, seed: int, edge_index: Tensor, num_dst: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._number, self._device = seed, 0, edge_index.device
        has_more = num_dst > NUM_SAMPLES  # of them the first are made up
        self._rows = (edge_index.size(1), NUM_PADDING * has_more), (num_dst, int(has_more))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, kwargs = random_states(self._device), kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():  # torch 2.5 asks them again
            out = func(*args, **kwargs)
        if all(map(torch.equal, before, random_states(self._device))):
            return out
        self._number += 1
        shape = [*getattr(leaves(out)[0], 'shape', ())]
        found = [
            (dim, *rows) for dim, n in enumerate(shape) for rows in self._rows if n % rows[0] == 0
        ]
        if not found:
            raise MessageError(f'it draws numbers of shape {shape}, not some for every edge')
        dim, num_rows, first = found[0]
        of_row = [*shape[:dim], shape[dim] // num_rows, *shape[dim + 1 :]]
        for row in range(num_rows):
            seed_random_states(hash((self._seed, self._number, row - first)), self._device)

            def at_row(arg: Any, start: int = row * of_row[dim]) -> Any:
                if isinstance(arg, Tensor) and arg.shape[dim : dim + 1] == (shape[dim],):
                    return arg.narrow(dim, start, of_row[dim])
                return of_row if isinstance(arg, (list, tuple)) and [*arg] == shape else arg

            drawn = func(*map(at_row, args), **kwargs)
            for whole, part in zip(leaves(out), leaves(drawn), strict=True):
                if [*part.shape] != of_row:
                    raise MessageError(f"it draws by '{func}' over rows")
                at_row(whole).copy_(part)
        return out


@contextmanager
def _on_samples(call: Call) -> Iterator[None]:
    """While it lasts, sizes of the whole graph are made up, and norms keep their statistics."""
    conv = call.conv
    sizes = WholeGraphSizes(conv, NUM_SAMPLES, NUM_SAMPLES, is_sample=True)
    with torch.no_grad(), sizes.in_force(), ExitStack() as stack:
        for norm in conv.modules():  # which then use their running statistics
            if takes_statistics(norm) and norm.training:
                stack.enter_context(overridden(norm, 'training', False))
        yield


def _compare(expected: _Values, actual: _Values, starts: Sequence[int] | None = None) -> None:
    """Compares the first rows of `expected` with those from `starts` of `actual`."""
    num_rows = NUM_SAMPLES - 1
    for i, ((a, dim), (b, _)) in enumerate(zip(expected, actual, strict=True)):
        start = 0 if starts is None else starts[i]
        if min(a.size(dim), b.size(dim) - start) < num_rows:
            raise UnsupportedMessageError('it does not give one row per edge, or per destination')
        rows = a.narrow(dim, 0, num_rows), b.narrow(dim, start, num_rows)
        if rows[0].shape != rows[1].shape or not torch.allclose(
            rows[0].double(), rows[1].double(), rtol=1e-3, atol=1e-6, equal_nan=True
        ):
            raise UnsupportedMessageError(
                'a message depends on the other edges it is computed with, or on their ids'
            )
