#!/usr/bin/env bash
# Guess: dist.reduce(x, dst=0) gives rank 0 the sum and leaves x of the other ranks as it was.
#
# So it is (torch 2.13.0, gloo, 3 ranks): x of the other ranks is overwritten with sums of some of
# the ranks, other ones at other places.
#
# Why it matters: a metric or a gradient that is reduced for a log on rank 0 and used on its own rank
# after that is a mixture. Reduce a clone.
#
# Source: page of torch.distributed.reduce ("Only the process with rank dst is going to receive the
# final result" says nothing of the rest); gloo/reduce.cc.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/ranks.py" <<'PYTHON'
import datetime
import sys

import torch
import torch.distributed as dist


def run(rank, store):
    a_minute = datetime.timedelta(seconds=60)
    dist.init_process_group('gloo', f'file://{store}', a_minute, world_size=3, rank=rank)
    losses = torch.ones(1000)
    dist.reduce(losses, dst=0)
    seen = [None] * 3
    dist.all_gather_object(seen, losses.unique().tolist())
    if rank == 0:
        print('; '.join(f'rank {i}: {values}' for i, values in enumerate(seen)))
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=3)
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="rank 0: [3.0]; rank 1: [1.0, 2.0, 3.0]; rank 2: [1.0, 2.0, 3.0]"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder/store")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
