#!/usr/bin/env bash
# Guess: adj @ x and torch.sparse.mm(adj, x) are one product. If adj learns, its gradient is sparse in
# both, with a number for each edge.
#
# So it is (torch 2.13.0): only torch.sparse.mm gives that. adj @ x gives a dense gradient of all
# pairs of nodes: 1,000,000 numbers for 1,000 nodes and 3 edges. At the edges the two are equal. And
# torch.sparse.mm fills all pairs as well on its way, before it takes those of the edges.
#
# Why it matters: learnt edge weights work on Cora, and on 100,000 nodes the backward needs 40 GB.
# Messages over edge_index with edge_weight need a number for each edge.
#
# Source: pytorch issues 41128 (memory of torch.sparse.mm's backward) and 86963.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/gradient.py" <<'PYTHON'
import torch

N = 1000
edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
for name, product in {'@': torch.matmul, 'sparse.mm': torch.sparse.mm}.items():
    adj = torch.sparse_coo_tensor(edges, torch.ones(3), (N, N), check_invariants=True).coalesce()
    adj.requires_grad_()
    product(adj, torch.ones(N, 1)).sum().backward()
    stored = adj.grad._nnz() if adj.grad.is_sparse else adj.grad.numel()
    print(f'{name}: {adj.grad.layout}, {stored} numbers;', end=' ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="@: torch.strided, 1000000 numbers; sparse.mm: torch.sparse_coo, 3 numbers;"
seen=$("$folder/venv/bin/python" -W ignore "$folder/gradient.py" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
