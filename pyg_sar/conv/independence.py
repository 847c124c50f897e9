"""Checks that a message depends on nothing but its own edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from pyg_sar.aggregate.program import no_autocast_cache
from pyg_sar.conv.binding import Binding
from pyg_sar.conv.sampling import (
    NUM_SAMPLES,
    AttributeWatch,
    random_states,
    restore_random_states,
    samples_of,
)
from pyg_sar.conv.softmax import UnsupportedMessageError, block_index, softmax_replaced


@no_autocast_cache()
def check_rows_are_independent(
    binding: Binding, uses_rng: bool, *, sees_all_in_edges: bool
) -> None:
    """Checks that a message depends on its own edge only, by leaving one edge out.

    Args:
        binding: The function with its arguments.
        uses_rng: Whether the function draws random numbers: then nothing can be compared.
        sees_all_in_edges: Whether it may look at the other edges into its destination.

    Raises:
        UnsupportedMessageError: If the messages of other edges change.
    """
    if uses_rng:
        return
    conv = binding.conv
    samples, edge_index = samples_of(binding)
    if not sees_all_in_edges:
        edge_index[1] = 0
    fewer = replace(samples, edge=tuple(t[1:] for t in samples.edge))
    outs = []
    with torch.no_grad(), _evaluating(conv):
        for arguments, edges in ((samples, edge_index), (fewer, edge_index[:, 1:])):
            state = random_states(edges.device)
            attributes = AttributeWatch(conv)
            try:
                if sees_all_in_edges:
                    out = binding.call(arguments, edges, edges[1], NUM_SAMPLES)
                else:
                    with softmax_replaced(conv, lambda logits, _: logits.sigmoid()):
                        index = block_index(edges[1])
                        out = binding.call(arguments, edges, index, NUM_SAMPLES)
            finally:
                attributes.restore()
                restore_random_states(state, edges.device)
            outs.append(out)
    dim = conv.node_dim if binding.function == 'message' else 0
    expected = outs[0].narrow(dim, 1, NUM_SAMPLES - 1)
    if outs[1].shape != expected.shape or not torch.allclose(
        outs[1].double(), expected.double(), rtol=1e-3, atol=1e-6, equal_nan=True
    ):
        raise UnsupportedMessageError('a message depends on the other edges it is computed with')


@contextmanager
def _evaluating(conv: torch.nn.Module) -> Iterator[None]:
    """While it lasts, global norms use their running statistics and leave them alone."""
    norms = [m for m in conv.modules() if getattr(m, 'is_global', False) and m.training]
    for module in norms:
        module.training = False
    try:
        yield
    finally:
        for module in norms:
            module.training = True
