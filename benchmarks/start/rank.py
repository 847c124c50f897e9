"""One rank of a training, as a program: it trains an epoch for every line that it reads."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from process_memory import proportional, resident_peak
from training import train


def main() -> None:
    rank, world_size, store, options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    if world_size > 1:
        os.environ['GLOO_SOCKET_IFNAME'] = 'lo'
        dist.init_process_group('gloo', init_method=store, rank=rank, world_size=world_size)
    epochs = train(**options)
    result = next(epochs)
    while True:
        memory = {'resident': resident_peak(), 'pss': proportional()}
        print(json.dumps({**result, **memory}), file=answers, flush=True)
        if not sys.stdin.readline():
            return
        result = next(epochs)


if __name__ == '__main__':
    main()
