"""Finds out whether a message is x_j times a factor that it computes without x_j.

It may be summed over heads, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from pyg_sar.nn.intercept import MessageError
from pyg_sar.nn.one_call import Call
from pyg_sar.nn.plans import program_of
from pyg_sar.nn.sample_edges import NUM_SAMPLES, Undone, samples_of
from pyg_sar.nn.trace import Trace, trace


def with_factor(call: Call, traced: Trace) -> Trace:
    """The trace of a message that is summed, with its factor and the name of x_j, if it has one."""
    conv, node_dim = call.conv, call.conv.node_dim
    is_watched = conv._message_forward_pre_hooks or conv._message_forward_hooks
    if is_watched or not traced.may_have_factor:
        return traced
    for slot in call.slots:
        x = call.arguments.src[slot.index] if slot.role == 'src' else None
        if x is None or x.dtype != traced.out.dtype or node_dim not in (0, -x.dim()):
            continue
        with suppress(MessageError, RuntimeError):  # it uses x_j otherwise, or in another shape
            of_factor = call.of_factor(slot.name)
            factor = trace(of_factor)
            found = replace(traced, source=slot.name, factor=factor, summed=of_factor.summed)
            has_row_per_edge = factor.out.shape[:1] == (NUM_SAMPLES,)
            if has_row_per_edge and _is_product(call, of_factor, found, slot.index):
                return found
    return traced


def _is_product(call: Call, of_factor: Call, traced: Trace, source: int) -> bool:
    """Whether factor times x_j is the message on samples, also in what takes a gradient."""
    assert traced.factor is not None
    samples, edge_index = samples_of(call)
    edge_index[1] = 0
    rows = samples.src[source]
    with Undone(call.conv, call.arguments):
        (message,), _ = program_of(call, traced, 1).run(samples, edge_index, _softmax)
    with Undone(call.conv, call.arguments):  # with the same draws
        _, (factor, *_) = program_of(of_factor, traced.factor, 1).run(
            samples_of(of_factor)[0], edge_index, _softmax
        )
    takes_gradient = torch.is_grad_enabled() and (factor.requires_grad or rows.requires_grad)
    if message.requires_grad != takes_gradient:
        return False
    factor, flat = (t.detach().reshape(NUM_SAMPLES, -1) for t in (factor, rows))
    product = flat.view(*factor.shape, -1) * factor.unsqueeze(-1)
    if traced.summed is not None:
        shape, dim = traced.summed
        product = product.view(NUM_SAMPLES, *shape).sum(dim + 1)
    pair = product.flatten(), message.detach().flatten()
    return torch.allclose(*pair, rtol=0, atol=0, equal_nan=True)


def _softmax(logits: Tensor, dst: Tensor) -> Tensor:
    return torch.softmax(logits, 0)
