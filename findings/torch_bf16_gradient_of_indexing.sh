#!/usr/bin/env bash
# Guess: x[src] and x.index_select(0, src) are one operation; in bfloat16 on a CPU the backward of
# both adds in bfloat16, and 4,096 edges from one node give a gradient of 256.
#
# So it is (torch 2.13.0): index_select's backward sums in float32 and gives 4,096. That of x[src],
# and of nn.functional.embedding, stops at 256.
#
# Why it matters: PyG's own convs use index_select. A model that writes x[src] itself, as for links
# or edge features, trains hubs on a part of their gradient.
#
# Source: torch_geometric/nn/conv/message_passing.py (_index_select); pytorch issue 137425
# (index_select's backward is index_add).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/gradient.py" <<'PYTHON'
import torch

N = 4096
src = torch.zeros(N, dtype=torch.long)
ways = {
    'x[src]': lambda x: x[src],
    'embedding': lambda x: torch.nn.functional.embedding(src, x),
    'index_select': lambda x: x.index_select(0, src),
}
for name, way in ways.items():
    x = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    way(x).backward(torch.ones(N, 1, dtype=torch.bfloat16))
    print(f'{name} {x.grad.item():.0f};', end=' ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="x[src] 256; embedding 256; index_select 4096;"
seen=$("$folder/venv/bin/python" -W ignore "$folder/gradient.py" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
