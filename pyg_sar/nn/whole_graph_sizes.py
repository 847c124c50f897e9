"""Sizes of the whole graph that an aggregation reads off its messages.

Some aggregations (LSTM) pad the messages of every node to the largest in-degree they see, and their
result may depend on that width. Others divide by the number of nodes. In a chunk of destinations
they get these numbers of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.aggr import EquilibriumAggregation, PatchTransformerAggregation
from torch_geometric.utils import to_dense_batch as pyg_to_dense_batch

from pyg_sar.nn.patching import overridden, replaced


@dataclass
class WholeGraphSizes:
    """Gives a conv's aggregation sizes of the whole graph, and notes which it asks for.

    Attributes:
        conv: The conv.
        width: The largest in-degree.
        num_nodes: Number of destinations.
        is_sample: Whether the edges are made up, so that any size will do.
        is_dense: Whether dense batches of messages were made.
        are_read: Whether any size was asked for.
    """

    conv: torch.nn.Module
    width: int
    num_nodes: int
    is_sample: bool = False
    is_dense: bool = field(default=False, init=False)
    are_read: bool = field(default=False, init=False)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """While it lasts, the aggregations of the conv see the sizes of the whole graph."""

        def to_dense_batch(
            x: Tensor,
            batch: Tensor | None = None,
            fill_value: float = 0.0,
            max_num_nodes: int | None = None,
            batch_size: int | None = None,
        ) -> Any:
            self.is_dense = self.are_read = True
            width = self.width if max_num_nodes is None else max_num_nodes
            return pyg_to_dense_batch(x, batch, fill_value, width, batch_size)

        with ExitStack() as stack:
            stack.enter_context(replaced({pyg_to_dense_batch: to_dense_batch}))
            for module in self.conv.modules():
                if isinstance(module, PatchTransformerAggregation):
                    stack.enter_context(overridden(module, 'forward', self._patches(module)))
                elif isinstance(module, EquilibriumAggregation):
                    stack.enter_context(overridden(module, 'reg', self._regularisation(module)))
            yield

    def _patches(self, module: Any) -> Callable[..., Any]:
        """PatchTransformerAggregation counts one more than the largest in-degree."""
        forward = module.forward

        def with_width(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get('max_num_elements') is None:
                kwargs['max_num_elements'] = max(self.width + 1, module.patch_size * self.is_sample)
            return forward(*args, **kwargs)

        return with_width

    def _regularisation(self, module: Any) -> Callable[..., Any]:
        """EquilibriumAggregation regularises by a mean over all nodes."""

        def reg(y: Tensor) -> Any:
            self.are_read = True
            return module.softplus(module.lamb) * y.square().sum() / max(self.num_nodes, 1)

        return reg
