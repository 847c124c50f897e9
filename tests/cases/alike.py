"""A program on ranks gives what it gives in one process of plain PyG, elementwise."""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from ranks import run_as_threads, run_ranks, seed
from small_graphs import ASSIGNMENTS, assign, small_graph
from torch import Tensor
from torch.nn import Parameter

import pyg_sar

Wrap = Callable[[Any], Any]
"""Makes a model parallel, or leaves it as it is."""

Program = Callable[..., Any]
"""Takes data, a `Wrap` and what a test gives; returns tensors, numbers and texts, also nested."""

Cut = str | Sequence[int]
"""A kind of ``small_graphs.assign``, a method of partition_graph, or the part of every node."""

RUNS = {'threads': run_as_threads, 'processes': run_ranks}


def assert_alike(
    program: Program,
    *args: Any,
    graph: Callable[[], Any] = small_graph,
    cut: Cut = 'uneven',
    ranks: Sequence[int] = (3,),
    parts: int | None = None,
    by: str = 'threads',
    tolerance: float = 1e-10,
    rtol: float | None = None,
    bits: bool = False,
    equal_nan: bool = False,
) -> None:
    """Compares what a program gives on every rank with what one process gives.

    Args:
        program: A function at the top level of a module.
        *args: What it takes after the data and the `Wrap`.
        graph: Makes the graph; a function at the top level of a module.
        cut: How the graph is cut.
        ranks: Numbers of ranks, one after another; 1 is this process.
        parts: Of the graph; by default one for each rank, and three for one rank.
        by: What ranks are.
        tolerance: Absolute and relative, of every element.
        rtol: Relative, where it is another one.
        bits: Whether all ranks must have the same bits.
        equal_nan: Whether NaN is equal to NaN.
    """
    want = on_whole_graph(program, graph, *args)
    for size in ranks:
        root = cut_of(graph, parts or (3 if size == 1 else size), cut)
        first, *others = on_ranks(program, size, root, *args, by=by)
        for found in (first, *others):
            assert_same(found, want, tolerance=tolerance, rtol=rtol, equal_nan=equal_nan)
        for found in others if bits else ():
            assert_same(found, first, tolerance=0, equal_nan=equal_nan)


def as_one_process(**options: Any) -> Callable[[Program], Callable[..., None]]:
    """Marks a test whose body is the program: what it gives is compared, see :func:`assert_alike`.

    The body takes data, a `Wrap` and parameters of pytest, plain values. `options` are those of
    :func:`assert_alike`; parameters that are called `graph`, `cut`, `ranks` and `parts` say the
    same.
    """

    def marked(body: Program) -> Callable[..., None]:
        parameters = [*inspect.signature(body).parameters.values()][2:]
        program = functools.partial(_body, body.__module__, body.__name__)

        def test(**given: Any) -> None:
            named = {
                name: given[name] for name in ('graph', 'cut', 'ranks', 'parts') if name in given
            }
            args = (given[each.name] for each in parameters)
            assert_alike(program, *args, **{**options, **named})

        test.body = body  # type: ignore[attr-defined]
        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return test

    return marked


def _body(module: str, name: str, data: Any, wrap: Wrap, *args: Any) -> Any:
    """Found by name: a function behind a decorator does not travel."""
    return getattr(importlib.import_module(module), name).body(data, wrap, *args)


def on_whole_graph(program: Program, graph: Callable[[], Any], *args: Any) -> Any:
    """What one process of plain PyG gives."""
    data = graph()
    seed()
    return leaves(program(data, itself, *args))


def on_ranks(
    program: Program, world_size: int, root: str, *args: Any, by: str = 'threads'
) -> list[dict[str, Any]]:
    """What a program gives on every rank, or in this process with all parts."""
    if world_size == 1:
        seed()
        return [of_rank(program, root, args)]
    return RUNS[by](of_rank, world_size, program, root, args)


def of_rank(program: Program, root: str, args: Any) -> dict[str, Any]:
    """What a program gives on this rank: rows of the whole graph, and the rest as it is."""
    found = program(pyg_sar.load_shard(root), pyg_sar.DistributedDataParallel, *args)
    return {path: whole(leaf) for path, leaf in leaves(found).items()}


@functools.cache
def _cut(graph: Callable[[], Any], num_parts: int, cut: Any) -> str:
    folder = tempfile.mkdtemp(prefix='parts-')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data, method = graph(), cut
    if cut in ASSIGNMENTS:
        method = assign(data.num_nodes, num_parts, cut)
    elif not isinstance(cut, str):
        method = torch.tensor(cut)
    root = Path(folder) / 'parts'
    pyg_sar.partition_graph(data, num_parts, root, method=method)
    return str(root)


def cut_of(graph: Callable[[], Any], num_parts: int, cut: Cut = 'uneven') -> str:
    """The folder of a graph in so many parts, which no test may write to."""
    return _cut(graph, num_parts, cut if isinstance(cut, str) else tuple(cut))


def itself(model: Any) -> Any:
    """What plain PyG does in the place of a `Wrap`."""
    return model


def leaves(value: Any, path: str = '') -> dict[str, Any]:
    """Tensors, numbers and texts by their places in dicts, lists and tuples."""
    if isinstance(value, dict):
        named = {f'{path}.{key}' if path else str(key): each for key, each in value.items()}
    elif isinstance(value, (list, tuple)):
        named = {f'{path}[{i}]': each for i, each in enumerate(value)}
    else:
        is_plain = type(value) in (Tensor, Parameter)
        return {path: value.detach().clone() if is_plain else value}
    return {name: leaf for key, each in named.items() for name, leaf in leaves(each, key).items()}


def whole(leaf: Any) -> Any:
    """All rows of a tensor of rows; anything else as it is."""
    if isinstance(leaf, Tensor) and type(leaf) not in (Tensor, Parameter):
        return pyg_sar.gather(leaf.detach())
    return leaf


def assert_same(
    found: dict[str, Any],
    want: dict[str, Any],
    *,
    tolerance: float,
    rtol: float | None = None,
    equal_nan: bool = False,
) -> None:
    """Compares leaves by name: tensors and floats within the tolerance, the rest exactly."""
    assert found.keys() == want.keys()
    for name, value in want.items():
        if not isinstance(value, (Tensor, float)):
            assert found[name] == value, name
            continue
        rtol = tolerance if rtol is None else rtol
        options = {'rtol': rtol, 'atol': tolerance, 'equal_nan': equal_nan}
        say = functools.partial('{}: {}'.format, name)
        torch.testing.assert_close(found[name], value, **options, msg=say)


def assert_bits(found: Any, want: Any) -> None:
    """Every leaf is the same, bit by bit."""
    assert_same(leaves(found), leaves(want), tolerance=0)


def take_step(
    model: Any,
    data: Any,
    *args: Any,
    loss: Callable[[Any], Tensor] | None = None,
    grad: Callable[[Tensor], Any] = lambda p: p.grad,
    **more: Any,
) -> list[Any]:
    """Output of a model, and the gradients of its features and of its parameters, from none on.

    With ``grad=gradient`` those that did not arrive are zero.
    """
    x = data.x.detach().clone().requires_grad_()
    for p in model.parameters():
        p.grad = None
    out = model(x, data.edge_index, *args, **more)
    (out.square().sum() if loss is None else loss(out)).backward()
    return [out.detach(), x.grad, *map(grad, model.parameters())]


def gradient(tensor: Tensor) -> Tensor:
    """Its gradient, zero where none arrived."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def parallel(model: Any, wrap: Wrap, **options: Any) -> Any:
    """What `wrap` makes of a model, on ranks with options of DistributedDataParallel."""
    return model if wrap is itself else pyg_sar.DistributedDataParallel(model, **options)
