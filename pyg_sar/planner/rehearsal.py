"""Rehearses a training step of one rank by the real code, on a small graph of its proportions.

So for any model the memory per node, per edge and per row of a block is measured. The process is
rank 0 of P. Every other rank is assumed to hold an equal shard, shifted: rank r sends to rank 0
what rank 0 sends to rank -r. So every exchange gets tensors of the right sizes and sensible values,
without a process group.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric.nn import MessagePassing

from pyg_sar.comm.comm import Comm
from pyg_sar.comm.ranks import chosen
from pyg_sar.commands.users_model import run_model
from pyg_sar.monitor.live_bytes import LiveBytes
from pyg_sar.nn.ddp.wrap import wrap
from pyg_sar.nn.options import Mode
from pyg_sar.planner.counts import RankSizes
from pyg_sar.planner.made_up import made_up_shard
from pyg_sar.rows.from_data import as_rows_of_graph, space_of_nodes
from pyg_sar.rows.rows import Rows
from pyg_sar.shard.meta import Meta
from pyg_sar.shard.vertex_cover import covers_pay
from pyg_sar.utils import hook
from pyg_sar.utils.meter import Counts, Meter
from pyg_sar.utils.random_states import random_states_kept


class Job(NamedTuple):
    """A training to rehearse: arguments of :func:`pyg_sar.planner.plan`."""

    model: torch.nn.Module
    meta: Meta
    mode: Mode = 'sequential'
    forward: Callable[[torch.nn.Module, Any], Any] = run_model


class Rehearsal(NamedTuple):
    """What one rank needed."""

    peak_bytes: int  # of tensors alive at once, without the shard's
    bytes_received: int  # in the last epoch
    rows_received: int
    cpu_seconds: float  # of the fastest epoch after the first one


def rehearse(job: Job, sizes: RankSizes, *, count: bool = True, epochs: int = 2) -> Rehearsal:
    """Trains a copy of the model on a made-up shard, with Adam.

    The first of the `epochs` also makes plans and optimizer states. Without `count` bytes are not
    counted, and one thread computes.
    """
    with random_states_kept(torch.device('cpu')), equal_ranks(sizes.num_ranks) as traffic:
        torch.manual_seed(0)
        model = copy.deepcopy(job.model).to('cpu').train()
        for module in model.modules():
            if isinstance(module, MessagePassing):  # reversed edges would be as many
                module.flow = 'source_to_target'
        pays: Any = {'partial_sums': covers_pay(sizes.cover_share, 1)}
        model = wrap(model, mode=job.mode, **({} if job.mode == 'one_shot' else pays))
        if any(map(is_lazy, model.parameters())):
            with torch.no_grad():
                job.forward(model, as_rows_of_graph(made_up_shard(sizes, job.meta)))
        data = made_up_shard(sizes, job.meta)
        of_model = [*model.parameters(), *model.buffers()]
        live, seconds = LiveBytes([*of_model, *_tensors(data)]), []
        as_rows_of_graph(data)
        optimizer = torch.optim.Adam(model.parameters())
        with ExitStack() as stack:
            if count:
                stack.enter_context(live)
            else:  # threads that wait for each other would take CPU seconds, too
                stack.callback(torch.set_num_threads, torch.get_num_threads())
                torch.set_num_threads(1)
            for _ in range(epochs):
                before = traffic.bytes_received, traffic.rows_received
                start = time.process_time()
                out = job.forward(model, data)  # alive until the step, as in a program
                loss = _loss(out, data)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                del out
                seconds.append(time.process_time() - start)
    num_bytes, num_rows = traffic.bytes_received - before[0], traffic.rows_received - before[1]
    peak = live.peak + sum(tensor.nbytes for tensor in of_model)
    return Rehearsal(peak, num_bytes, num_rows, min(seconds[1:]))


def _tensors(data: Any) -> Iterator[Tensor]:
    """All tensors of a shard."""
    for store in data.stores:
        yield from (value for value in store.values() if isinstance(value, Tensor))
    for store in data.edge_stores:
        handle = store['edge_index'].handle
        yield from (handle.ids, *(step.send_index for step in handle.shard.steps))


def _loss(out: Any, data: Any) -> Tensor:
    """The cross entropy of logits of nodes, or of logits by type of node."""
    losses = []
    for logits in out.values() if isinstance(out, dict) else [out]:
        stores = [store for store in data.node_stores if _is_row_of(logits, store)]
        if not stores:
            got = getattr(logits, 'shape', type(logits))
            raise ValueError(f'expected one row of logits per node of the model (got {got})')
        mask = stores[0].train_mask
        losses.append(F.cross_entropy(logits[mask], stores[0].y[mask]))
    return torch.stack(losses).sum()


def _is_row_of(logits: Any, store: Any) -> bool:
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        return False
    if isinstance(logits, Rows):  # on several ranks
        return logits._space is space_of_nodes(store)
    return len(logits) == store.num_nodes


@contextmanager
def equal_ranks(num_ranks: int) -> Iterator[Counts]:
    """Makes this thread rank 0 of equal ranks, and yields the counts of its traffic."""
    counts = Counts()
    meter = Meter(counts)
    with ExitStack() as stack:
        if num_ranks > 1:
            stack.enter_context(chosen.set(_EqualRanks(num_ranks)))
        hook.add(meter)
        stack.callback(hook.remove, meter)
        yield counts


class _EqualRanks(Comm):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def sum_alike(
        self, alike: str, *, number: int = 0, state: str = '', summed: Tensor | None = None
    ) -> int | None:
        return number * self.size

    def gather_texts(self, text: bytes, what: str) -> list[bytes]:
        return [text] * self.size

    def start_swap(
        self,
        received: Sequence[Tensor],
        recv_rank: int,
        sent: Sequence[Tensor],
        send_rank: int,
        words: str,
    ) -> tuple[list[Any], list[Any]]:
        """In one step the rows from rank -s are those that go to rank +s."""
        for target, source in zip(received, sent, strict=True):
            target.copy_(source)
        return [], []

    def all_to_all(
        self, received: Tensor, sent: Tensor, recv_sizes: list[int], send_sizes: list[int]
    ) -> None:
        """The rows from rank r are those that go to rank -r."""
        parts = torch.split(sent, send_sizes)
        for rank, part in enumerate(torch.split(received, recv_sizes)):
            part.copy_(parts[-rank % self.size])

    def all_reduce(self, tensor: Tensor, group: object = None) -> None:
        tensor *= self.size

    def all_gather(self, own: Tensor) -> Tensor:
        return torch.stack([own] * self.size)

    def broadcast(self, tensor: Tensor) -> None:
        pass
