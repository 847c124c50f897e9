"""Trains a case on this rank and compares it with plain PyG in one process, elementwise.

Compared are outputs, the gradients of all floating inputs and of all parameters, and buffers.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from alike import gradient, whole
from conv_case import Case, Edges, Inputs, make
from conv_graphs import GRAPHS
from meter import Meter, metered
from torch import Tensor

import pyg_sar
from pyg_sar.comm.ranks import rank, takes_turns, world_size

TOLERANCE = 1e-10
"""Of absolute differences, relative to the largest entry of a tensor where that exceeds 1."""

TOLERANCE_SINGLE = 1e-6
"""The same where PyG computes in float32 inside: losses and gradients are those of several ranks,
and divided by their number at the end, so float32 rounds them elsewhere."""

TOLERANCE_FLOAT32 = 1e-4
"""The same in float32, beyond twice what one process is off."""

Values = dict[str, Any]
"""Tensors, and Edges among the outputs, by name."""


@dataclass
class Result:
    """What became of a case on one rank.

    Attributes:
        stage: Where it ended: ``'making'`` the plain conv, ``'construction'`` of the wrapped one,
            ``'partition'`` of its graph, ``'reference'`` (what PyG gives), ``'forward'``,
            ``'backward'`` or ``'compared'``.
        error: The kind of exception it ended with, or an empty string.
        reason: Its message.
        differences: The largest difference of every tensor, relative as :data:`TOLERANCE` says.
        paths: The paths taken.
        halo: Most rows of other ranks' nodes held at once in receive buffers.
        gradients: Most rows of their gradients held at once.
        num_tensors: Most tensors exchanged together.
        together: Most rows of many blocks fetched together, as by the path by destination.
        together_numbers: The same where each row is a single number.
        num_live: Buffers that were never given back.
        largest_block: Rows of the largest remote block.
        num_halo: Rows of all remote blocks.
        num_own: Rows of own nodes.
    """

    stage: str = 'making'
    error: str = ''
    reason: str = ''
    differences: dict[str, float] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    halo: int = 0
    gradients: int = 0
    num_tensors: int = 0
    together: int = 0
    together_numbers: int = 0
    num_live: int = 0
    largest_block: int = 0
    num_halo: int = 0
    num_own: int = 0


def run_case(
    case: Case,
    root: str | None,
    *,
    device: str = 'cpu',
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Result:
    """One case; whatever it raises is its result. Rows are not counted where ranks are threads."""
    result = Result()
    try:
        with case.during():
            module = make(case).to(device, dtype)
            keys = list(module.state_dict())
            result.stage = 'construction'
            module = pyg_sar.DistributedDataParallel(module, **options)
            assert list(module.state_dict()) == keys
            result.stage = 'partition'
            if root is None:
                return result
            result.stage = 'reference'
            want, plain = reference(case, torch.float64), reference(case, dtype)
            result.stage = 'forward'
            metering = nullcontext(Meter()) if takes_turns() else metered()
            with metering as meter:
                data = _load(root, device)
                if dtype != torch.float64:
                    data = as_dtype(data, dtype)

                def at(stage: str) -> None:
                    result.stage = stage
                    if stage == 'compared':
                        _note(meter, data, result)

                found = step(case, module, data, at)
            result.differences = _differences(found, plain, want)
    except Exception as error:
        result.error, result.reason = type(error).__name__, str(error)
        if 'closed by peer' in result.reason:
            result.error = 'PeerLost'  # another rank has the reason
    return result


@functools.cache
def reference(case: Case, dtype: torch.dtype = torch.float64) -> Values:
    """What one process of plain PyG gives."""
    return step(case, make(case).to(dtype), as_dtype(GRAPHS[case.graph](), dtype))


def step(
    case: Case,
    module: torch.nn.Module,
    data: Any,
    at: Callable[[str], None] = lambda stage: None,
) -> Values:
    """Forward and backward; `at` is told of ``'backward'`` and, after it, of ``'compared'``."""
    inputs = Inputs(data)
    outputs = flatten(case.call(module, inputs))
    kept = {  # as reversible layers free theirs in backward
        name: value if isinstance(value, Edges) else value.detach().clone()
        for name, value in outputs.items()
    }
    at('backward')
    backward(outputs)
    at('compared')
    found = {name: _gathered(value) for name, value in kept.items()}
    for key, leaf in inputs.leaves.items():
        name = f'gradient of {" ".join(map(str, filter(None, key)))}'
        found[name] = _gathered(gradient(leaf))
    plain = make(case)
    for (name, _), own in zip(plain.named_parameters(), module.parameters(), strict=True):
        found[f'gradient of {name}'] = gradient(own).clone()
    found |= zip((name for name, _ in plain.named_buffers()), module.buffers(), strict=True)
    return found


def _gathered(value: Any) -> Any:
    """All rows of the whole graph."""
    return Edges(*map(whole, value)) if isinstance(value, Edges) else whole(value)


def flatten(output: Any, name: str = 'out') -> dict[str, Any]:
    """Tensors and Edges by name."""
    if isinstance(output, (Tensor, Edges)):
        return {name: output}
    items = output.items() if isinstance(output, dict) else enumerate(output)
    found: dict[str, Any] = {}
    for key, value in items:
        if value is not None:
            found |= flatten(value, f'{name}[{key}]')
    return found


def backward(outputs: dict[str, Any]) -> None:
    """Gradients of a sum of the outputs, weighted by fixed numbers of eighths."""
    loss: Any = 0.0
    for name, output in outputs.items():
        values = output.values if isinstance(output, Edges) else output
        if not values.requires_grad:
            continue
        if isinstance(output, Edges):
            src, dst = output.edge_index
            weight = (src * 7 + dst * 3) % 16 / 8 - 1
            weight = weight.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
        else:
            generator = torch.Generator().manual_seed(sum(name.encode()))
            weight = torch.randint(-16, 17, values.shape, generator=generator) / 8
            weight = weight.to(values.device, values.dtype)
        loss = loss + (values * weight).sum()
    if isinstance(loss, Tensor):
        loss.backward()


def as_dtype(data: Any, dtype: torch.dtype) -> Any:
    """A graph with its floating values in this dtype."""
    return data.apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def _differences(found: Values, plain: Values, exact: Values) -> dict[str, float]:
    """The largest difference of every tensor from that of plain PyG in the same precision.

    In float32 relative to its largest entry, and where one process is far off what is exact,
    another may be as far off on the other side.
    """
    if found.keys() != exact.keys():
        return {f'{sorted(found)} for {sorted(exact)}': float('inf')}
    differences = {}
    for name, want in exact.items():
        if plain is exact:
            differences[name] = difference(found[name], want)
            continue
        largest = {n: float(t.abs().max()) for n, t in exact.items() if t.numel()}
        # A gradient that is zero but for rounding (of a bias that softmax cancels) has no scale.
        scale = largest[name] if largest[name] > 1e-10 else max(largest.values())
        assert found[name].dtype == plain[name].dtype
        ours, theirs = (t[name].detach().cpu().double() / scale for t in (found, plain))
        off = float((theirs - want / scale).abs().max())
        apart = float((ours - theirs).abs().max())
        differences[name] = apart / max(1.0, 2 * off / TOLERANCE_FLOAT32)
    return differences


def difference(got: Any, want: Any) -> float:
    """The largest absolute one, relative to the largest entry of `want` where that exceeds 1."""
    if isinstance(want, Edges):  # sets of (source, destination, values)
        (ends, got), (wanted, want) = _sorted(got), _sorted(want)
        if ends.shape != wanted.shape or not torch.equal(ends, wanted):
            return float('inf')
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.shape != want.shape or got.dtype != want.dtype:
        return float('inf')
    if got.numel() == 0:
        return 0.0
    scale = max(1.0, want.double().abs().max().item())
    found = (got.double() - want.double()).abs().max().item() / scale
    return found if found == found else float('inf')


def _sorted(edges: Edges) -> tuple[Tensor, Tensor]:
    ends, values = edges.edge_index.cpu(), edges.values.detach().cpu()
    rows = values.unsqueeze(-1).flatten(1)
    order = rows[:, 0].argsort(stable=True)
    for key in (ends[1], ends[0]):
        order = order[key[order].argsort(stable=True)]
    return ends[:, order], rows[order]


@functools.cache
def _load_for(root: str, rank: int, world_size: int) -> Any:
    return pyg_sar.load_shard(root)


def _load(root: str, device: str) -> Any:
    """New for every case, whose exchanges are counted; on a device only once."""
    if device == 'cpu':
        return pyg_sar.load_shard(root)
    return copy.copy(_load_for(root, rank(), world_size())).to(device)


def _note(meter: Meter, data: Any, result: Result) -> None:
    result.paths = meter.paths
    for name in ('halo', 'gradients', 'num_tensors', 'together', 'together_numbers', 'num_live'):
        setattr(result, name, getattr(meter, name))
    stores = data.edge_stores if hasattr(data, 'edge_stores') else [data]
    indices = [getattr(store.edge_index, 'handle', store.edge_index) for store in stores]
    shards = meter.shards or [index.shard for index in indices]
    sizes = [step.recv_rows for shard in shards for step in shard.steps]
    result.largest_block = max(sizes, default=0)
    result.num_halo = max(shard.num_halo for shard in shards)
    result.num_own = max(shard.num_own for shard in shards)
