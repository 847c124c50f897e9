"""One run of message and aggregation on rows of "the edges of a block".

The destination index tells which edges belong together. Softmaxes and reductions over it are noted;
a sum over in-edges that is read at the edges again needs all in-edges of a node at once. So do
PyG's own aggregations that are no reductions (median, LSTM): they are known to look at the in-edges
of one node at a time. Any other use of the index needs the edges of all ranks.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch._C import DisableTorchFunction
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.norm import LayerNorm
from torch_geometric.utils import degree as pyg_degree
from torch_geometric.utils import scatter as pyg_scatter
from torch_geometric.utils import softmax as pyg_softmax

from pyg_sar.nn.call import NUM_EDGES, Call
from pyg_sar.nn.counts import ALL_NODES, Count, may_be_none
from pyg_sar.nn.edge_space import BlockRows, Watch
from pyg_sar.nn.intercept import (
    Intercept,
    MessageError,
    UnsupportedMessageError,
    WatchedIndex,
    WholeGraphSizes,
    overridden,
)
from pyg_sar.nn.leaky_scores import LeakyScores
from pyg_sar.nn.linear_in_softmax import SoftmaxUse
from pyg_sar.nn.narrow_exchange import is_hooked, is_sum
from pyg_sar.nn.options import Path
from pyg_sar.nn.plan import Plan
from pyg_sar.nn.reductions import MERGED_AS, Aggregate, aggregate_of
from pyg_sar.nn.side_effects import UndoneSideEffects, leaves_of
from pyg_sar.nn.source_rows import Ends, OwnRows, SourceRows, Uses
from pyg_sar.nn.summed_product import SummedProduct
from pyg_sar.ops.program import Arguments
from pyg_sar.ops.reductions import Sum
from pyg_sar.rows.registry import signature_of
from pyg_sar.rows.rows import Rows, plain, plainly, tag
from pyg_sar.utils.class_swap import name_of, plain_class
from pyg_sar.utils.tensor_state import version_of


class MessageRun(Intercept):
    """One run of message and aggregation: what both do with the destination index."""

    def __init__(
        self, call: Call, edges: BlockRows, nodes: BlockRows, samples: Arguments, notes: list[str]
    ) -> None:
        super().__init__(call.conv)
        self.call, self.edges, self.nodes, self._notes = call, edges, nodes, notes
        self.uses = Uses()
        self.by_destination = False
        self._watch, self._use = Watch(edges, nodes, samples.device), SoftmaxUse()
        self._edge_samples = samples.edge
        self._num_softmax = 0
        self._message: Any = None
        self._logits: Any = None
        self._values: dict[str, Any] = {}
        self._reduced: list[Any] = []  # rows
        self._calls: list[tuple[int, str, int]] = []

    def inputs(self, samples: Arguments) -> dict[str, Any]:
        """The values that the function may ask for, as rows."""
        ids = torch.arange(NUM_EDGES, device=samples.device)
        index = WatchedIndex.of(ids, self.edges)
        values = self.call.inputs(samples, torch.stack([ids, ids]), index, Count(ALL_NODES))
        node_dim = int(self.call.conv.node_dim)
        for slot in self.call.slots:
            value = values[slot.name]
            if slot.role == 'edge':
                values[slot.name] = tag(value.view_as(value), 0, self.edges)
            elif slot.role in ('src', 'dst'):  # which a message may write to
                values[slot.name] = rows = tag(value.clone(), node_dim % value.dim(), self.edges)
                if value.is_floating_point():
                    kind: Any = SourceRows if slot.role == 'src' else OwnRows
                    kind.follow(rows, slot.name, self.uses)
        return values

    def __call__(self, values: dict[str, Any]) -> Any:
        """The result of the message."""
        call, conv = self.call, self.call.conv
        self._values = values
        sizes = WholeGraphSizes(conv, NUM_EDGES, NUM_EDGES, is_sample=True)
        with ExitStack() as stack:
            stack.enter_context(sizes.in_force())
            stack.enter_context(self)
            for module in conv.modules():
                if isinstance(module, Aggregation):
                    known = overridden(module, 'forward', self._known(module, module.forward))
                    stack.enter_context(known)
            stack.enter_context(self._use)
            stack.enter_context(self._watch)
            with torch._C._EnableTorchFunction():
                try:
                    with may_be_none.set(True):
                        out = call.run(values)
                    self._check(out, 'result')
                    if call.function == 'message':
                        self._message = out
                        result = call.aggregate({**values, 'size_i': Count(ALL_NODES)}, out)
                        if not (isinstance(result, Rows) and result._sharding is self.nodes):
                            raise MessageError('its aggregation gives no row for every node')
                except UnsupportedMessageError:
                    if not _is_pygs(conv, call.function):
                        raise
                    self.by_destination = True
                    self._notes.clear()
                    return None
        self.by_destination |= self._watch.by_destination
        return out

    def _check(self, out: Any, what: str) -> None:
        dim = int(self.call.conv.node_dim) if self.call.function == 'message' else 0
        if (
            not isinstance(out, Rows)
            or out._sharding is not self.edges
            or out._dim != dim % out.dim()
        ):
            raise MessageError(f'its {what} has no row for every edge')

    def plan(
        self,
        out: Any,
        names: tuple[str, ...],
        written: tuple[str, ...],
        undone: UndoneSideEffects,
        samples: Arguments,
        first_node: Any,
    ) -> Plan:
        """The cheapest path that is exact, with what the run has found."""
        call, conv = self.call, self.call.conv
        name, is_one_shot = f'{name_of(conv)}.{call.function}', call.options.mode == 'one_shot'
        tables = self._watch.reads_tables
        at_once = Plan(path='by destination', function=name, reads_tables=tables)
        if self.by_destination or self._num_softmax > 1:
            return at_once
        attributes = tuple(undone.changed[name] for name in names)
        path: Path = 'one_shot' if is_one_shot else 'replay'
        aggregate, reduced, source, weight, is_factored = None, self._reduced, '', None, False
        ends, read_names = self._ends(attributes, written)  # if x_j is summed elsewhere
        edge_outputs: tuple[Tensor, ...] = (out, *attributes)
        if call.function == 'message':
            edge_outputs, aggregate = attributes, aggregate_of(self._calls, self._reduced)
            if aggregate is None:
                return at_once
            keeps = bool(names or written)
            if aggregate.sums_one:
                product = SummedProduct(call, self._edge_samples, read_names)
                source, weight, is_factored = product.read_from(
                    reduced[0], out, keeps, undone.uses_rng
                )
            if is_factored:
                path = 'one_shot' if is_one_shot else 'scalar times x_j'
                edge_outputs, reduced = (out.factor, *edge_outputs), []
            elif source:
                is_linear = weight is None or product.is_plain(reduced[0])
                path = 'SpMM' if is_linear else 'SpMM with learned values'
        if not is_factored:
            ends, _ = self._ends((*reduced, *edge_outputs), written)
        with plainly():
            outputs, weights = [*reduced, *edge_outputs], None
            if self._num_softmax:
                if not self._is_linear(outputs, aggregate if reduced else None):
                    return at_once
                assert self._use.weights is not None
                weights = plain(self._use.weights).detach()
            learnable, are_read = leaves_of([out, *outputs], samples, first_node)
            if path == 'scalar times x_j':
                learnable, _ = leaves_of(outputs, samples, first_node)
            return Plan(
                path=path,
                function=name,
                out=plain(out).detach(),
                edge_outputs=tuple(plain(t).detach() for t in edge_outputs),
                edge_attributes=names,
                written=written,
                messages=tuple(plain(t).detach() for t in self._reduced),
                aggregate=aggregate,
                is_sum=aggregate is not None and is_sum(conv),
                is_hooked=aggregate is not None and is_hooked(conv),
                weights=weights,
                scores=None
                if reduced or written or undone.uses_rng
                else self._scores(edge_outputs, learnable),
                ends=ends,
                edge_bytes=max(self._watch.edge_bytes, 0 if ends else self.uses.product_bytes),
                reads_tables=tables,
                uses_rng=undone.uses_rng,
                learnable=learnable,
                are_read=are_read,
                source=source,
                weight=weight,
                summed=self._reduced[0].summed if source else None,
            )

    def _ends(
        self, kept: tuple[Any, ...], written: tuple[str, ...]
    ) -> tuple[Ends | None, set[str]]:
        """What :meth:`Uses.settle` finds, of arguments whose dots may be computed apart."""
        call, conv = self.call, self.call.conv

        def is_allowed(ends: Ends) -> bool:
            dtype, device = self._values[ends[0]].dtype, self._values[ends[0]].device
            is_hooked = conv._message_forward_pre_hooks or conv._message_forward_hooks
            return (
                call.options.mode != 'one_shot'
                and device.type == 'cpu'
                and dtype in (torch.float32, torch.float64)
                and not torch.is_autocast_enabled(device.type)
                and not (is_hooked or set(ends) & set(written))
            )

        with plainly():
            return self.uses.settle(kept, is_allowed)

    def _scores(
        self, outputs: tuple[Tensor, ...], learnable: tuple[Tensor, ...]
    ) -> LeakyScores | None:
        """What the weights are made of, if they are the only output."""
        weights = self._use.weights
        if weights is None or len(outputs) != 1:
            return None
        out = plain(outputs[0])
        is_same = out.data_ptr() == weights.data_ptr() and out.numel() == weights.numel()
        is_kept = version_of(weights) == 0 and out.requires_grad == weights.requires_grad
        if not (is_same and is_kept and out.is_contiguous()):
            return None
        scores = self._watch.scores.read(self._logits, self._values, learnable)
        if scores is None:
            return None
        made_of = [self._values[scores.source], self._values[scores.own]]
        made_of += [] if scores.att is None else [learnable[scores.att]]
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in made_of)
        return scores if out.requires_grad == learns else None

    def _is_linear(self, outputs: list[Tensor], aggregate: Aggregate | None) -> bool:
        reductions = () if aggregate is None else aggregate.reductions
        is_summed = all(isinstance(r.merge, Sum) and r.dim == 0 for r in reductions)
        return is_summed and self._use.is_linear(outputs)

    def _known(self, module: Any, forward: Any) -> Any:
        """An aggregation; one of PyG's that no rule knows looks at one node's in-edges."""

        def aggregated(*args: Any, **kwargs: Any) -> Any:
            if self._watch.is_off:  # inside of one that is known
                return forward(*args, **kwargs)
            noted = len(self._calls), len(self._reduced), len(self._notes)
            try:
                return forward(*args, **kwargs)
            except (ValueError, RuntimeError, IndexError, TypeError, AttributeError):
                if not _is_known(module):
                    raise
            del self._calls[noted[0] :], self._reduced[noted[1] :], self._notes[noted[2] :]
            self.by_destination = True
            given = signature_of(type(module).forward).bind(module, *args, **kwargs).arguments
            x, dim = given['x'], int(given.get('dim', -2)) % given['x'].dim()
            self._check(x, 'aggregated tensor')
            ids = torch.arange(NUM_EDGES, device=x.device)
            given |= {'x': plain(x), 'index': ids, 'ptr': None, 'dim_size': NUM_EDGES}
            given.pop('self')
            self._watch.is_off = True
            try:
                with plainly():  # its classes may need functions of their own
                    return tag(forward(**given), dim, self.nodes)
            finally:
                self._watch.is_off = False

        return aggregated

    def _softmax(
        self,
        src: Tensor,
        index: Tensor | None = None,
        ptr: Tensor | None = None,
        num_nodes: int | None = None,
        dim: int = 0,
    ) -> Any:
        rows = self._rows_of(src, index, dim)
        if rows is None:
            return pyg_softmax(src, index, ptr, num_nodes, dim)
        self._num_softmax += 1
        self._logits = rows
        if isinstance(rows, (SourceRows, OwnRows)):
            self.uses.read.update(rows.names())
        if rows._sharding is not self.edges or rows._dim != 0:
            self.by_destination = True
        with DisableTorchFunction():
            weights = torch.softmax(plain(rows), rows._dim)
            self._use.begin(weights)
            return tag(weights, rows._dim, rows._sharding)

    def _scatter(
        self, src: Tensor, index: Tensor, dim: int = 0, dim_size: Any = None, reduce: str = 'sum'
    ) -> Any:
        rows = self._rows_of(src, index, dim)
        if rows is None:
            return pyg_scatter(src, index, dim, dim_size, reduce)
        is_of_all = rows._sharding is self.edges and reduce in MERGED_AS
        if self._message is None or not is_of_all:
            self.by_destination = True
        else:
            found = next((i for i, t in enumerate(self._reduced) if t is rows), len(self._reduced))
            self._reduced += [rows] if found == len(self._reduced) else []
            self._calls.append((found, reduce, rows._dim))
        own: Any = index
        with DisableTorchFunction():
            out = pyg_scatter(plain(rows), own.own, rows._dim, NUM_EDGES, reduce)
            return tag(out, rows._dim, self.nodes)

    def _degree(self, index: Tensor, num_nodes: Any = None, dtype: Any = None) -> Any:
        if not isinstance(index, WatchedIndex):
            return pyg_degree(index, num_nodes, dtype)
        if self._message is None or index._sharding is not self.edges:
            self.by_destination = True
        with DisableTorchFunction():
            return tag(pyg_degree(index.own, NUM_EDGES, dtype), 0, self.nodes)

    def _rows_of(self, src: Any, index: Any, dim: int) -> Rows | None:
        """The rows that a function groups by the destination index; None if it is another index."""
        if not isinstance(index, WatchedIndex):
            return None
        with DisableTorchFunction():
            is_alike = isinstance(src, Rows) and src._dim == dim % src.dim()
        if not is_alike or src._sharding is not index._sharding:
            raise MessageError('it groups other rows than those of the edges')
        return src


def _is_pygs(conv: torch.nn.Module, function: str) -> bool:
    """Whether PyG's own code reads the destination index."""
    names = ('message', 'aggregate') if function == 'message' else (function,)
    homes = (getattr(plain_class(conv), name).__module__ for name in names)
    return all(home.startswith('torch_geometric.') for home in homes)


def _is_known(aggregation: torch.nn.Module) -> bool:
    """Whether an aggregation is PyG's, and no part of it takes statistics over nodes."""
    for module in aggregation.modules():
        home = type(module).__module__
        is_norm = home.startswith(('torch_geometric.nn.norm', 'torch.nn.modules.batchnorm'))
        is_by_row = isinstance(module, LayerNorm) and module.mode == 'node'
        if (is_norm and not is_by_row) or not home.startswith(('torch.', 'torch_geometric.')):
            return False
    return True
