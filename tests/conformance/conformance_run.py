"""Runs cases on the ranks and compares them with one-process PyG, elementwise."""

from __future__ import annotations

import copy
import faulthandler
import functools
import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import conformance_case
import torch
import torch.distributed as dist
from conformance_case import Case, Edges, Inputs
from conformance_cases import CASES, CHECKS
from conformance_compare import (
    backward,
    difference,
    flatten,
    gradient,
    output_differences,
)
from conformance_graphs import GRAPHS
from conformance_meter import Meter, metered

import pyg_sar
from pyg_sar.comm import rank, takes_turns, world_size

TOLERANCE = 1e-10
"""Of absolute differences, relative to the largest entry of a tensor where that exceeds 1."""

TOLERANCE_SINGLE = 1e-6
"""The same where PyG computes in float32 inside: losses and gradients are those of several ranks,
and divided by their number at the end, so float32 rounds them elsewhere."""


@dataclass
class Result:
    """What became of a case on one rank.

    Attributes:
        stage: Where it ended: ``'making'`` the plain conv, ``'reference'`` (what PyG gives),
            ``'construction'`` of the wrapped one, ``'partition'`` of its graph, ``'forward'``,
            ``'backward'`` or ``'compared'``.
        error: The kind of exception it ended with, or an empty string.
        reason: Its message.
        differences: The largest difference of every tensor, relative as :data:`TOLERANCE` says.
        paths: The paths taken.
        halo: Most rows of other ranks' nodes held at once in receive buffers.
        gradients: Most rows of their gradients held at once.
        num_tensors: Most tensors exchanged together.
        together: Most rows of many blocks fetched together, as by the gather path.
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


class DesynchronisedError(RuntimeError):
    """Ranks do not agree on where a case ended: nothing can be exchanged any more."""


def run_cases(names: list[str], roots: dict[str, str], log: str, patience: float) -> None:
    """Runs cases one after another and appends every result to a file of this rank.

    Args:
        names: The cases.
        roots: The partition folder of every graph that could be partitioned.
        log: A folder.
        patience: Seconds after which a rank that waits within one case ends itself.

    Raises:
        DesynchronisedError: If a case ended at different places on different ranks.
    """
    rank = dist.get_rank()
    folder = Path(log)
    with (
        (folder / f'rank-{rank}').open('a') as file,
        (folder / f'stacks-{rank}').open('w') as stacks,
    ):
        for name in names:
            faulthandler.dump_traceback_later(patience, exit=True, file=stacks)
            result = run_case((CASES | CHECKS)[name], roots)
            file.write(json.dumps([name, asdict(result)]) + '\n')
            file.flush()
            ends: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(ends, (result.stage, result.error))
            faulthandler.cancel_dump_traceback_later()
            if len(set(ends)) > 1:
                raise DesynchronisedError(f"'{name}' ended differently on the ranks: {ends}")


def run_case(
    case: Case, roots: dict[str, str], device: str = 'cpu', mode: str = 'sequential'
) -> Result:
    """One case; whatever it raises is its result. Rows are not counted where ranks are threads."""
    result = Result()
    try:
        with case.during():
            module = conformance_case.make(case)
            result.stage = 'construction'
            module = pyg_sar.DistributedDataParallel(module.to(device), mode=mode)
            result.stage = 'partition'
            if case.graph not in roots:
                return result
            result.stage = 'reference'
            reference(case)
            result.stage = 'forward'
            metering = nullcontext(Meter()) if takes_turns() else metered()
            with metering as meter:
                _run(case, module, roots[case.graph], device, meter, result)
    except Exception as error:
        result.error, result.reason = type(error).__name__, str(error)
        if 'closed by peer' in result.reason:
            result.error = 'PeerLost'  # another rank has the reason
    return result


def _run(
    case: Case, module: torch.nn.Module, root: str, device: str, meter: Meter, result: Result
) -> None:
    data = _load(root) if device == 'cpu' else copy.copy(_load_once(root)).to(device)
    plain, plain_inputs, expected = reference(case)
    inputs = Inputs(data)
    try:
        outputs = flatten(case.call(module, inputs))
        result.stage = 'backward'
        backward(outputs)
        result.stage = 'compared'
    finally:
        _note(meter, data, result)
    result.differences = output_differences({k: _gathered(v) for k, v in outputs.items()}, expected)
    for key, leaf in inputs.leaves.items():
        name = f'gradient of {" ".join(map(str, filter(None, key)))}'
        got = pyg_sar.gather(gradient(leaf)).cpu()
        result.differences[name] = difference(got, gradient(plain_inputs.leaves[key]))
    pairs = zip(plain.named_parameters(), module.parameters(), strict=True)
    for (name, want), own in pairs:
        result.differences[f'gradient of {name}'] = difference(gradient(own).cpu(), gradient(want))
    for (name, want), own in zip(plain.named_buffers(), module.buffers(), strict=True):
        result.differences[name] = difference(own.cpu(), want)


def _load(root: str) -> Any:
    return pyg_sar.load_shard(root)


def _load_once(root: str) -> Any:
    return _load_for(root, rank(), world_size())


@functools.cache
def _load_for(root: str, rank: int, world_size: int) -> Any:
    return _load(root)


def _gathered(output: Any) -> Any:
    """All rows of the whole graph, on the host."""
    if isinstance(output, Edges):
        return Edges(pyg_sar.gather(output.edge_index).cpu(), pyg_sar.gather(output.values).cpu())
    return pyg_sar.gather(output).cpu()


def _note(meter: Meter, data: Any, result: Result) -> None:
    result.paths = meter.paths
    for name in ('halo', 'gradients', 'num_tensors', 'together', 'together_numbers'):
        setattr(result, name, getattr(meter, name))
    result.num_live = meter.num_live
    shards = meter.shards or [each.handle.shard for each in handles(data)]
    sizes = [step.recv_rows for shard in shards for step in shard.steps]
    result.largest_block = max(sizes, default=0)
    result.num_halo = max(shard.num_halo for shard in shards)
    result.num_own = max(shard.num_own for shard in shards)


def handles(data: Any) -> list[Any]:
    """The edge indices of a shard's data, of all edge types."""
    if hasattr(data, 'edge_types'):
        return [data[edge_type].edge_index for edge_type in data.edge_types]
    return [data.edge_index]


@functools.cache
def reference(case: Case) -> tuple[torch.nn.Module, Inputs, dict[str, Any]]:
    """One-process PyG: the module and the inputs with their gradients, and the outputs."""
    data = GRAPHS[case.graph]()
    module, inputs = conformance_case.make(case), Inputs(data)
    outputs = flatten(case.call(module, inputs))
    backward(outputs)
    return module, inputs, outputs
