#!/usr/bin/env bash
# Guess: all_reduce writes into its tensor. If the backward needs the old numbers, autograd says so:
# "modified by an inplace operation".
#
# So it is (torch 2.13.0, gloo): it does not notice. The tensor's version stays the same, and the
# backward of exp() takes the sum of all ranks for its own output. mul_(2) at that place raises.
#
# Why it matters: all_reduce of an activation trains without an error on gradients that are neither
# those of one rank (here 1 and 3) nor those of the sum (2 and 6). all_reduce of
# torch.distributed.nn.functional has a backward.
#
# Source: page of torch.distributed (collectives are not differentiable); pytorch PR 190419.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/ranks.py" <<'PYTHON'
import datetime
import math
import sys

import torch
import torch.distributed as dist


def gradient(rank, change):
    weight = torch.tensor([rank * math.log(3)], requires_grad=True)
    out = weight.exp()  # 1 on rank 0, 3 on rank 1
    change(out)
    try:
        out.sum().backward()
    except RuntimeError:
        return 'RuntimeError'
    return f'{weight.grad.item():.1f}'


def run(rank, store):
    a_minute = datetime.timedelta(seconds=60)
    dist.init_process_group('gloo', f'file://{store}', a_minute, world_size=2, rank=rank)
    seen = [None, None]
    dist.all_gather_object(seen, gradient(rank, dist.all_reduce))
    if rank == 0:
        print(f'all_reduce {seen}; mul_ {gradient(rank, lambda out: out.mul_(2))}')
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="all_reduce ['4.0', '4.0']; mul_ RuntimeError"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder/store")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
