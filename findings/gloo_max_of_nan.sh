#!/usr/bin/env bash
# Guess: all_reduce with MAX gives NaN on all ranks if one rank has NaN, as torch.maximum does.
#
# So it is (torch 2.13.0, gloo): which rank has the NaN decides, and the place in the tensor. Of two
# ranks, a NaN of rank 0 is seen by both, a NaN of rank 1 by none: both get the other number. In a
# tensor of four equal numbers half of them are NaN. MIN does the same, SUM gives NaN.
#
# Why it matters: "stop if the loss of any rank is NaN" by MAX sees the half of cases, and a test with
# a NaN on rank 0 passes.
#
# Source: gloo/math.h (max and min are std::max and std::min, which take the first of what has no
# order).
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
    dist.init_process_group('gloo', f'file://{store}', a_minute, world_size=2, rank=rank)
    for bad in range(2):
        for size in (1, 4):
            loss = torch.full((size,), float('nan') if rank == bad else 1.0)
            dist.all_reduce(loss, dist.ReduceOp.MAX)
            if rank == 0:
                print(f'NaN on rank {bad}: {loss.tolist()};', end=' ')
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
on_0="NaN on rank 0: [nan]; NaN on rank 0: [nan, nan, 1.0, 1.0];"
expected="$on_0 NaN on rank 1: [1.0]; NaN on rank 1: [1.0, 1.0, nan, nan];"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder/store" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
