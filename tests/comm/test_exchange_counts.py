"""How many messages and rows travel, by path, mode and pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layouts import layouts
from on_ranks import on_ranks
from small_graphs import small_graph
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, TransformerConv
from traffic import counted, give_back

from pyg_sar import SARConv
from pyg_sar.comm.exchange import Exchange


def _rows_of(shard: Any) -> list[list[int]]:
    """Rows that rank r reads of part q, from the graph alone; 0 for own parts."""
    parts = torch.load(f'{shard.root}/node_map.pt', weights_only=True)
    per_rank = shard.num_parts // shard.world_size
    src, dst = small_graph().edge_index
    rank_of_dst = parts[dst] // per_rank

    def count(rank: int, part: int) -> int:
        is_read = (rank_of_dst == rank) & (parts[src] == part)
        return src[is_read].unique().numel() if part // per_rank != rank else 0

    return [[count(r, q) for q in range(shard.num_parts)] for r in range(shard.world_size)]


def _expected_receives(rows: list[list[int]], rank: int) -> list[tuple[int, int]]:
    """Sender and rows of every non-empty step, in the order of the steps."""
    world_size, per_rank = len(rows), len(rows[0]) // len(rows)
    senders = [(rank - s) % world_size for s in range(1, world_size)]
    order = [(sender, sender * per_rank + i) for sender in senders for i in range(per_rank)]
    return [(sender, rows[rank][q]) for sender, q in order if rows[rank][q]]


@layouts()
@on_ranks(is_local=True)
def test_one_message_per_step(data, world_size, num_parts, kind):
    """Exactly one receive per non-empty step, of exactly the rows that are read."""
    shard = data.edge_index.handle.shard
    exchange, rows = Exchange(shard), _rows_of(shard)
    x = torch.randn(shard.num_own, 3)
    with counted() as forward:
        for _ in exchange.all_gather_halo([x]):
            pass
    with counted() as backward:
        ranges = map(shard.source_range, [*shard.parts, *(step.part for step in shard.steps)])
        ones = [[torch.ones(end - start, 3)] for start, end in ranges]
        give_back(exchange, [torch.zeros_like(x)], ones)
    expected = _expected_receives(rows, shard.rank)
    assert forward.receives == expected
    # The gradients of these very rows go back to where they came from.
    assert backward.sends == expected
    assert sorted(backward.receives) == sorted(forward.sends)
    sent = [
        (reader, count)
        for reader in range(world_size)
        for sender, count in _expected_receives(rows, reader)
        if sender == shard.rank
    ]
    assert sorted(forward.sends) == sorted(sent)
    for traffic in (forward, backward):
        assert (traffic.all_to_alls, traffic.others) == (0, 0)
    if world_size == num_parts:
        meta = json.loads(Path(shard.root, 'META.json').read_text())
        assert meta['pyg_sar']['halo_rows'] == rows


# Tensors times exchanges of rows in forward and backward, and of gradients in backward.
# Transformer: keys and values, in one pass each way. GAT: one pass for edge_updater with its
# logits, and one for the messages with its values.
EXCHANGES = {
    (SAGEConv, 'sequential'): (1, 0, 1),
    (GCNConv, 'sequential'): (1, 0, 1),
    (TransformerConv, 'sequential'): (2, 2, 2),
    (TransformerConv, 'sequential_no_remat'): (2, 0, 2),
    (GATConv, 'sequential'): (2, 2, 2),
    (GATConv, 'sequential_no_remat'): (2, 0, 2),
}


@on_ranks(by='own processes')  # others may know already that this sum comes
def test_exchanges_of_a_layer(data):
    """In its second forward, with an input that needs a gradient."""
    num_steps = sum(count > 0 for count in _rows_of(data.edge_index.handle.shard)[dist.get_rank()])
    for (make, mode), (rows_forward, rows_backward, gradients) in EXCHANGES.items():
        conv = SARConv(make(6, 4).double(), mode=mode)
        x = data.x.clone().requires_grad_()
        conv(x, data.edge_index)
        with counted() as forward:
            out = conv(x, data.edge_index)
        with counted() as backward:
            out.backward(torch.ones_like(out))
        num_sent = len(forward.sends) // rows_forward
        found = (*map(len, (forward.receives, backward.receives, backward.sends)),)
        assert found == (
            rows_forward * num_steps,
            rows_backward * num_steps + gradients * num_sent,
            rows_backward * num_sent + gradients * num_steps,
        ), (make, mode)
        # All ranks run the same layer, whose first forward told which rows travel.
        assert (forward.all_to_alls, forward.others) == (0, 1), (make, mode)
        # The sum of so few gradients is in the message that tells where all ranks are.
        assert (backward.all_to_alls, backward.others) == (0, 1), (make, mode)
