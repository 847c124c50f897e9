#!/usr/bin/env bash
# Guess: all_reduce sums each place of a tensor in one order of the ranks. If all places of a rank
# hold the same number, all places of the result do.
#
# So it is (torch 2.13.0, gloo, 3 ranks): a tensor is cut into pieces, and each piece is summed from
# another rank on. 2**24 + 1 + 1 in float32 is 2**24 in one piece and 2**24 + 2 in another. All ranks
# get the same tensor.
#
# Why it matters: equal nodes in two places of one tensor get unequal sums, and a sum changes in its
# last bit if a tensor is joined with another: sum twice alike, and compare within rounding.
#
# Source: gloo/allreduce.cc (ring: a segment begins at another rank).
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
    sums = torch.full((1000,), 2.0**24 if rank == 0 else 1.0)
    dist.all_reduce(sums)
    others = [torch.zeros(1000) for _ in range(3)]
    dist.all_gather(others, sums)
    if rank == 0:
        print(f'2**24 + {[int(value) - 2**24 for value in sums.unique()]},', end=' ')
        print(f'alike on all ranks: {all(other.equal(sums) for other in others)}')
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=3)
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="2**24 + [0, 2], alike on all ranks: True"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder/store")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
