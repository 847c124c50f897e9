#!/usr/bin/env bash
# Guess: SAGEConv(aggr='max') has the same gradients for edge_index and for the same graph as a
# sparse matrix, also where two neighbours tie for the maximum.
#
# So it is (torch 2.13.0, torch_geometric 2.8.1): with edge_index the neighbours that tie share the
# gradient; with a CSR matrix the first of them gets all. The outputs are equal.
#
# Why it matters: ties are common in bfloat16, and where embeddings of nodes begin equal. The same
# model with the same seed then learns something else once the graph is adj_t, and the node that
# comes first learns alone.
#
# Source: torch.Tensor.scatter_reduce ('amax') and torch.sparse.mm(..., reduce='amax').
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/ties.py" <<'PYTHON'
import torch
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import to_torch_csr_tensor

edges = torch.tensor([[0, 1], [2, 2]])
adj_t = to_torch_csr_tensor(edges.flip(0), size=(3, 3))
for name, graph in {'edge_index': edges, 'CSR': adj_t}.items():
    x = torch.ones(3, 1, requires_grad=True)
    out = SimpleConv(aggr='max')(x, graph)
    out.sum().backward()
    print(f'{name}: {out[2].item()}, gradients {x.grad[:2].view(-1).tolist()};', end=' ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="edge_index: 1.0, gradients [0.5, 0.5]; CSR: 1.0, gradients [1.0, 0.0];"
seen=$("$folder/venv/bin/python" -W ignore "$folder/ties.py" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
