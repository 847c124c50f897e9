"""What mode one_shot would hold for one call of message passing.

A linear sum holds the rows that travel. Any other message is plain PyG over all edges: it holds all
local rows, and what message, aggregation and their backward allocate for every edge. No formula
covers that: an edge network makes a matrix for each edge, and the gradient of a maximum takes seven
times its input. So it is measured. The function runs on a few hundred made-up edges and on twice as
many; the difference of the peaks gives the bytes per edge. The largest estimate of all ranks
decides.
"""

from __future__ import annotations

import math

import torch

from pyg_sar.monitor.live_bytes import LiveBytes
from pyg_sar.nn.one_call import Call
from pyg_sar.nn.sample_edges import NUM_SAMPLES, Undone, samples_of
from pyg_sar.nn.whole_graph_sizes import WholeGraphSizes
from pyg_sar.ops.program import Arguments, no_autocast_cache, without_hooks

_NUM_EDGES = 300
_MARGIN = 1.4
"""For what kernels allocate inside. Peaks of a process on 200,000 edges were 0.6 to 1.4 times what
is counted here, for 12 convs and aggregations with gradients and without."""


def one_shot_bytes(call: Call, *, is_linear: bool) -> int:
    """Estimates the bytes that this rank would hold at once besides its own nodes' tensors.

    `is_linear` says that the call is a sum of weighted rows.
    """
    shard = call.plan.shard
    num_rows = shard.num_halo + sum(step.send_index.numel() for step in shard.steps)
    row_bytes = sum(math.prod(t.shape[1:]) * t.element_size() for t in call.arguments.src)
    if is_linear:
        return num_rows * row_bytes
    # One tensor holds copies of the own and the halo rows.
    num_rows += shard.num_own + shard.num_halo
    of_edges = _MARGIN * call.plan.num_edges * _bytes_per_edge(call)
    return num_rows * row_bytes + math.ceil(of_edges)


@no_autocast_cache()
def _bytes_per_edge(call: Call) -> float:
    with Undone(call.conv, call.arguments):
        few, many = (_peak_bytes(call, n) for n in (_NUM_EDGES, 2 * _NUM_EDGES))
    return max(many - few, 0) / _NUM_EDGES


def _peak_bytes(call: Call, num_edges: int) -> int:
    """What forward and backward hold at once on some edges between sampled nodes."""
    samples, _ = samples_of(call)
    nodes = torch.arange(num_edges, device=samples.device) % NUM_SAMPLES
    edge_index = torch.stack([nodes, nodes.sort().values])
    edge = tuple(t.detach()[nodes].requires_grad_(t.requires_grad) for t in samples.edge)
    arguments = Arguments(samples.src, samples.dst, edge, samples.whole)
    learnable = [p for p in call.conv.parameters() if p.requires_grad]
    live = LiveBytes([*arguments, *call.conv.parameters(), *call.conv.buffers(), edge_index])
    sizes = WholeGraphSizes(call.conv, num_edges // NUM_SAMPLES, NUM_SAMPLES, is_sample=True)
    with sizes.in_force(), live:
        values = call.inputs(arguments, edge_index, edge_index[1], NUM_SAMPLES)
        out = call.run(values)
        if call.function == 'message':
            out = call.aggregate(values, out)
        del values
        leaves = [t for t in [*arguments, *learnable] if t.requires_grad]
        if out.requires_grad and leaves:
            with without_hooks(leaves):
                torch.autograd.grad(out, leaves, torch.ones_like(out), allow_unused=True)
    return live.peak
