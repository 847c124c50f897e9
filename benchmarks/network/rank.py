"""One rank: for every line, an epoch of the model and variant that it names; a line of JSON back.

Started by main.py as a program, on a host of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from cached_graphs import read_all  # noqa: E402
from measured_training import make_model  # noqa: E402
from timeline import Timeline  # noqa: E402
from training import default_hidden  # noqa: E402

import pyg_sar  # noqa: E402
from pyg_sar.comm.comm import Comm  # noqa: E402
from pyg_sar.comm.process_group import GroupComm  # noqa: E402
from pyg_sar.comm.send_recv import Transfer  # noqa: E402

LINK, TIMELINE, NO_NETWORK, ROWS = 'link', 'timeline', 'no network', 'rows only'
PREFETCH, NO_PREFETCH = 'prefetch 1', 'no prefetch'
VARIANTS: dict[str, dict[str, Any]] = {
    PREFETCH: {},
    ROWS: {'partial_sums': False},
    NO_PREFETCH: {},
    'bfloat16': {'exchange_dtype': torch.bfloat16},
}


def at_once(comm: Comm, received: Sequence[Tensor], *_: Any) -> tuple[list[Any], int, None]:
    """In place of :meth:`GroupComm.start_send_recv`: rows of zeros have come already."""
    for tensor in received:
        tensor.zero_()
    return [], 0, None


_start, _finish = GroupComm.start, GroupComm.finish


def start_and_finish(comm: GroupComm, transfer: Transfer) -> None:
    """In place of :meth:`GroupComm.start`: nothing else is done beside a step of an exchange."""
    _start(comm, transfer)
    _finish(comm, transfer)


class Training:
    """A model in training.

    Args:
        model: One of ``measured_training.MODELS``.
        variant: One of ``VARIANTS``, or ``NO_NETWORK``.
        parts: The partition folder.
        layers: Number of layers.
    """

    def __init__(self, model: str, variant: str, parts: str, layers: int) -> None:
        self._variant, self._is_first = variant, True
        self._data = pyg_sar.load_shard(parts)
        read_all(self._data)
        torch.manual_seed(0)
        width, classes = self._data.num_features, self._data.num_classes
        network = make_model(model, width, default_hidden(model), layers, classes)
        options = VARIANTS.get(variant, {})
        self._network = pyg_sar.DistributedDataParallel(network, **options)
        self._optimizer = torch.optim.Adam(network.parameters(), lr=0.01)

    def epoch(self) -> float:
        """The loss."""
        data = self._data
        with ExitStack() as stack:
            for patched in self._patches():
                stack.enter_context(patched)
            out = self._network(data.x, data.edge_index)
            loss = F.cross_entropy(out[data.train_mask], data.y[data.train_mask])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            return float(loss.item())

    def _patches(self) -> list[Any]:
        if self._variant == NO_NETWORK and not self._is_first:  # the first one makes the plans
            return [patch.object(GroupComm, 'start_send_recv', at_once)]
        self._is_first = False
        if self._variant == NO_PREFETCH:
            nothing = patch.object(GroupComm, 'finish', lambda comm, transfer: None)
            return [patch.object(GroupComm, 'start', start_and_finish), nothing]
        return []


def send_steps(num_bytes: int) -> float:
    """Swaps messages in the steps of an exchange, each waited for; 0 as a loss.

    In step s a rank sends to the one s after it and receives from the one s before.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = torch.zeros(num_bytes // (size - 1), dtype=torch.uint8)
    received = torch.empty_like(sent)
    for step in range(1, size):
        operations = [
            dist.P2POp(dist.isend, sent, (rank + step) % size),
            dist.P2POp(dist.irecv, received, (rank - step) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return 0.0


def statistics_of(interface: str) -> Path:
    return Path('/sys/class/net') / interface / 'statistics'


def measured(step: Callable[[], float], interface: str) -> dict[str, float]:
    """Seconds, CPU seconds, bytes on the interface, and what the step gives: its loss."""
    counters = [statistics_of(interface) / name for name in ('tx_bytes', 'rx_bytes')]
    dist.barrier()
    before = [int(counter.read_text()) for counter in counters]
    start, cpu = time.perf_counter(), time.process_time()
    loss = step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    sent, received = (int(c.read_text()) - b for c, b in zip(counters, before, strict=True))
    return {
        'loss': loss,
        'seconds': seconds,
        'cpu_seconds': cpu,
        'bytes_sent': sent,
        'bytes_received': received,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rank', type=int, required=True)
    parser.add_argument('--ranks', type=int, required=True)
    parser.add_argument('--store', required=True, help='a file where the ranks meet')
    parser.add_argument('--interface', required=True)
    parser.add_argument('--parts', required=True)
    parser.add_argument('--layers', type=int, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        'gloo', init_method=f'file://{args.store}', rank=args.rank, world_size=args.ranks
    )
    trainings: dict[tuple[str, str], Training] = {}
    print(json.dumps('ready'), flush=True)
    for line in sys.stdin:
        model, variant, *asked = line.rstrip('\n').split('/')
        if model == LINK:
            answer = measured(lambda num_bytes=int(variant): send_steps(num_bytes), args.interface)
        else:
            if (model, variant) not in trainings:
                trainings[model, variant] = Training(model, variant, args.parts, args.layers)
            epoch = trainings[model, variant].epoch
            if asked == [TIMELINE]:
                dist.barrier()
                with Timeline(statistics_of(args.interface) / 'rx_bytes') as timeline:
                    epoch()
                answer = timeline.found()
            else:
                answer = measured(epoch, args.interface)
        print(json.dumps(answer), flush=True)


if __name__ == '__main__':
    main()
