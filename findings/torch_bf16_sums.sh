#!/usr/bin/env bash
# Guess: in bfloat16 on a CPU index_add and scatter_add lose what is small beside the sum, so 4,096
# ones give 256; what sees a whole row at once (segment_reduce, a sparse matrix) gives 4,096.
#
# So it is (torch 2.13.0): the other way round. index_add and scatter_add sum in float32 and give
# 4,096. segment_reduce, and a sparse COO matrix, stop at 256, where adding 1 changes nothing.
#
# Why it matters: a node with many neighbours gets a right or a wrong sum by the form of the graph;
# sorted segments, taken for speed, are the wrong ones.
#
# Source: torch.Tensor.index_add, torch.segment_reduce, torch.sparse.mm; none says what it sums in.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/sums.py" <<'PYTHON'
import torch

N = 4096
messages = torch.ones(N, 1, dtype=torch.bfloat16)
out = torch.zeros(1, 1, dtype=torch.bfloat16)
dst = torch.zeros(N, dtype=torch.long)
places = torch.stack([dst, torch.arange(N)])
matrix = torch.sparse_coo_tensor(places, messages.view(-1), (1, N), check_invariants=True)
sums = {
    'index_add': out.index_add(0, dst, messages),
    'scatter_add': out.scatter_add(0, dst.view(-1, 1), messages),
    'segment_reduce': torch.segment_reduce(messages, 'sum', lengths=torch.tensor([N])),
    'COO': matrix.coalesce() @ messages,
}
print(', '.join(f'{name} {value.item():.0f}' for name, value in sums.items()))
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="index_add 4096, scatter_add 4096, segment_reduce 256, COO 256"
seen=$("$folder/venv/bin/python" -W ignore "$folder/sums.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
