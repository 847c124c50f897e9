"""Runs cases on the ranks and compares them with one-process PyG, elementwise."""

from __future__ import annotations

import faulthandler
import functools
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import conformance_case
import torch
import torch.distributed as dist
from conformance_case import Case, Edges, Inputs, Key
from conformance_cases import CASES
from conformance_graphs import GRAPHS
from conformance_meter import Meter, metered
from torch import Tensor

import pyg_sar

TOLERANCE = 1e-10
"""Of absolute differences, relative to the largest entry of a tensor where that exceeds 1."""

PATIENCE = 60
"""Seconds after which a rank that waits within one case is given up."""


@dataclass
class Result:
    """What became of a case on one rank.

    Attributes:
        stage: Where it ended: ``'construction'``, ``'forward'``, ``'backward'`` or ``'compared'``.
        error: The kind of exception it ended with, or an empty string.
        reason: Its message.
        differences: The largest difference of every tensor, relative as :data:`TOLERANCE` says.
        paths: The paths taken.
        halo: Most rows of other ranks' nodes held at once in receive buffers.
        gradients: Most rows of their gradients held at once.
        num_tensors: Most tensors exchanged together.
        whole_halo: Rows fetched for all of the halo at once.
        whole_halo_numbers: Numbers fetched for all of the halo at once.
        num_live: Buffers that were never given back.
        largest_block: Rows of the largest remote block.
        num_halo: Rows of all remote blocks.
        num_own: Rows of own nodes.
    """

    stage: str = 'construction'
    error: str = ''
    reason: str = ''
    differences: dict[str, float] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    halo: int = 0
    gradients: int = 0
    num_tensors: int = 0
    whole_halo: int = 0
    whole_halo_numbers: int = 0
    num_live: int = 0
    largest_block: int = 0
    num_halo: int = 0
    num_own: int = 0


class DesynchronisedError(RuntimeError):
    """Ranks do not agree on where a case ended: nothing can be exchanged any more."""


def run_cases(names: list[str], roots: dict[str, str], log: str) -> None:
    """Runs cases one after another and appends every result to a file of this rank.

    Args:
        names: The cases.
        roots: The partition folder of every graph that could be partitioned.
        log: A folder.

    Raises:
        DesynchronisedError: If a case ended at different places on different ranks.
    """
    rank = dist.get_rank()
    with (Path(log) / f'rank-{rank}').open('a') as file:
        for name in names:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            result = run_case(CASES[name], roots)
            file.write(json.dumps([name, asdict(result)]) + '\n')
            file.flush()
            ends: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(ends, (result.stage, result.error))
            faulthandler.cancel_dump_traceback_later()
            if len(set(ends)) > 1:
                raise DesynchronisedError(f"'{name}' ended differently on the ranks: {ends}")


def run_case(case: Case, roots: dict[str, str]) -> Result:
    """One case; whatever it raises is its result."""
    result = Result()
    try:
        with case.during():
            module = pyg_sar.wrap(conformance_case.make(case))
            if case.graph not in roots:
                result.stage = 'partition'
                return result
            result.stage = 'forward'
            with metered() as meter:
                _run(case, module, roots[case.graph], meter, result)
    except Exception as error:
        result.error, result.reason = type(error).__name__, str(error)
    return result


def _run(case: Case, module: torch.nn.Module, root: str, meter: Meter, result: Result) -> None:
    whole = GRAPHS[case.graph]()
    data = pyg_sar.load_shard(root)
    plain, plain_inputs, expected = reference(case.name)
    inputs = Inputs(data)
    try:
        outputs = flatten(case.call(module, inputs))
        result.stage = 'backward'
        ids = GlobalIds(whole, data)
        backward(outputs, ids)
        result.stage = 'compared'
    finally:
        _note(meter, data, result)
    result.differences = _differences(outputs, expected, ids)
    for key, leaf in inputs.leaves.items():
        rows = ids.rows_of(key)
        name = f'gradient of {" ".join(map(str, filter(None, key)))}'
        want = gradient(plain_inputs.leaves[key])
        result.differences[name] = difference(gradient(leaf), want[rows], want)
    pairs = zip(plain.named_parameters(), module.parameters(), strict=True)
    for (name, want), own in pairs:
        got = gradient(own).clone()
        dist.all_reduce(got)
        result.differences[f'gradient of {name}'] = difference(got, gradient(want))
    for (name, want), own in zip(plain.named_buffers(), module.buffers(), strict=True):
        result.differences[name] = difference(own, want)


def _note(meter: Meter, data: Any, result: Result) -> None:
    result.paths = meter.paths
    for name in ('halo', 'gradients', 'num_tensors', 'whole_halo', 'whole_halo_numbers'):
        setattr(result, name, getattr(meter, name))
    result.num_live = meter.num_live
    shards = [handle.shard for handle in handles(data)]
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
def reference(name: str) -> tuple[torch.nn.Module, Inputs, dict[str, Any]]:
    """One-process PyG: the module and the inputs with their gradients, and the outputs."""
    case = CASES[name]
    data = GRAPHS[case.graph]()
    module, inputs = conformance_case.make(case), Inputs(data)
    outputs = flatten(case.call(module, inputs))
    backward(outputs, GlobalIds(data, data))
    return module, inputs, outputs


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


class GlobalIds:
    """Where a rank's rows are in the whole graph."""

    def __init__(self, whole: Any, own: Any) -> None:
        self.whole, self.own = whole, own

    def rows_of(self, key: Key) -> Any:
        """The rows of an input, as an index."""
        if self.own is self.whole:
            return slice(None)
        store, name = key
        own = self.own if store is None else self.own[store]
        is_edge = isinstance(store, tuple) or name.startswith('edge_') or name == 'pseudo'
        return own.e_id if is_edge else own.n_id

    def rows_of_output(self, name: str) -> Any:
        """The rows of an output, as an index."""
        stores = getattr(self.whole, 'node_types', [])
        named = [store for store in stores if f'[{store}]' in name]
        return self.rows_of((named[0] if named else self._only_output(), ''))

    def _only_output(self) -> Any:
        """The node type that has an output where it is not named: the last destination."""
        if not hasattr(self.whole, 'edge_types'):
            return None
        ((src, _, dst),) = self.whole.edge_types
        return src if dst == 'hyperedge' else dst

    def edges(self, edge_index: Tensor) -> Tensor:
        """Global ids of both ends."""
        edge_index = edge_index.as_subclass(Tensor)
        if self.own is self.whole:
            return edge_index
        known = self.whole.edge_index[:, self.own.e_id]
        local = self.own.edge_index.as_subclass(Tensor)
        to_global = torch.full((2, 2 * self.whole.num_nodes), -1)
        to_global[0, : self.own.num_nodes] = to_global[1, : self.own.num_nodes] = self.own.n_id
        to_global[0, local[0]] = known[0]
        return torch.stack([to_global[0, edge_index[0]], to_global[1, edge_index[1]]])


def backward(outputs: dict[str, Any], ids: GlobalIds) -> None:
    """Gradients of a sum of the outputs, weighted by fixed numbers of eighths."""
    tensors, gradients = [], []
    for name, output in outputs.items():
        values = output.values if isinstance(output, Edges) else output
        if not values.requires_grad:
            continue
        tensors.append(values)
        if isinstance(output, Edges):
            src, dst = ids.edges(output.edge_index)
            weight = (src * 7 + dst * 3) % 16 / 8 - 1
            gradients.append(
                weight.to(values).view(-1, *[1] * (values.dim() - 1)).expand_as(values)
            )
        else:
            gradients.append(_weights(name, ids, values)[ids.rows_of_output(name)])
    if tensors:
        torch.autograd.backward(tensors, gradients)


def _weights(name: str, ids: GlobalIds, values: Tensor) -> Tensor:
    """The same for every row of the whole graph, whichever rank holds it."""
    node_type = [t for t in getattr(ids.whole, 'node_types', []) if f'[{t}]' in name]
    store = node_type[0] if node_type else ids._only_output()
    num_nodes = ids.whole.num_nodes if store is None else ids.whole[store].num_nodes
    generator = torch.Generator().manual_seed(sum(name.encode()))
    size = num_nodes, *values.shape[1:]
    return torch.randint(-16, 17, size, generator=generator).to(values) / 8


def _differences(
    outputs: dict[str, Any], expected: dict[str, Any], ids: GlobalIds
) -> dict[str, float]:
    if outputs.keys() != expected.keys():
        return {f'outputs {sorted(outputs)} for {sorted(expected)}': float('inf')}
    found = {}
    for name, got in outputs.items():
        want = expected[name]
        if isinstance(want, Edges):
            found |= _edge_differences(name, got, want, ids)
        else:
            found[name] = difference(got, want[ids.rows_of_output(name)], want)
    return found


def _edge_differences(name: str, got: Edges, want: Edges, ids: GlobalIds) -> dict[str, float]:
    """As sets of (source, destination, values)."""
    ends, all_ends = ids.edges(got.edge_index), want.edge_index
    is_own = torch.isin(all_ends[1], ids.own.n_id)
    rows = _sorted(ends, got.values)
    wanted = _sorted(all_ends[:, is_own], want.values[is_own])
    if rows[0].shape != wanted[0].shape or not torch.equal(rows[0], wanted[0]):
        return {f'edges of {name}': float('inf')}
    return {name: difference(rows[1], wanted[1], want.values)}


def _sorted(ends: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    rows = values.detach().reshape(values.size(0), -1)
    order = rows[:, 0].argsort(stable=True)
    for key in (ends[1], ends[0]):
        order = order[key[order].argsort(stable=True)]
    return ends[:, order], rows[order]


def gradient(tensor: Tensor) -> Tensor:
    """Its gradient, zero where none arrived."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def difference(got: Tensor, want: Tensor, whole: Tensor | None = None) -> float:
    """The largest absolute one, relative to the largest entry of `whole` where that exceeds 1."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float('inf')
    if got.numel() == 0:
        return 0.0
    whole = want if whole is None else whole
    scale = max(1.0, whole.detach().double().abs().max().item())
    found = (got.detach().double() - want.detach().double()).abs().max().item() / scale
    return found if found == found else float('inf')
