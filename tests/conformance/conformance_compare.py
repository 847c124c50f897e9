"""Compares what a conv gave on one rank with what it gave on the whole graph."""

from __future__ import annotations

from typing import Any

import torch
from conformance_case import Edges, Key
from torch import Tensor


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


def output_differences(
    outputs: dict[str, Any], expected: dict[str, Any], ids: GlobalIds
) -> dict[str, float]:
    """The largest difference of every output of a rank."""
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
    rows = values.detach().unsqueeze(-1).flatten(1)
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
