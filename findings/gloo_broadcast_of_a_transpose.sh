#!/usr/bin/env bash
# Guess: gloo refuses a tensor that is not contiguous, such as edge_index.t(): "Tensors must be
# contiguous", as all_to_all_single does and NCCL does.
#
# So it is (torch 2.13.0): all_reduce and all_gather take one and are right. broadcast takes one, and
# the other ranks get its numbers in the order of memory: a 2 x 2 tensor arrives transposed. Nothing
# is said.
#
# Why it matters: edges as pairs (np.loadtxt(...).T, edge_index.t()) are such tensors. Rank 0 reads
# the graph, and the others train on another one. Call .contiguous() before.
#
# Source: pytorch issue 192920.
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
    edges = torch.tensor([[0, 1], [2, 3]]).t()
    here = edges if rank == 0 else torch.zeros(2, 2, dtype=torch.long)
    dist.broadcast(here, src=0)
    lists = [torch.zeros(2, 2, dtype=torch.long) for _ in range(2)]
    dist.all_gather(lists, edges)
    if rank == 1:
        print(f'sent {edges.tolist()}, broadcast {here.tolist()}, all_gather {lists[0].tolist()}')
    dist.destroy_process_group()


if __name__ == '__main__':
    torch.multiprocessing.spawn(run, (sys.argv[1],), nprocs=2)
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="sent [[0, 2], [1, 3]], broadcast [[0, 1], [2, 3]], all_gather [[0, 2], [1, 3]]"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder/store")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
