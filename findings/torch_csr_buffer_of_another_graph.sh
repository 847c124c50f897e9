#!/usr/bin/env bash
# Guess: load_state_dict takes the sparse matrix of another graph with as many nodes for a buffer, as
# it takes any tensor of the same shape.
#
# So it is (torch 2.13.0): for COO it does, and the buffer has the other graph's edges. For CSR it
# fails unless both have equally many edges, with a message that names two equal shapes.
#
# Why it matters: a model that keeps its graph as a buffer cannot load its checkpoint once the graph
# has gained an edge. register_buffer(..., persistent=False) leaves the graph out of the checkpoint.
#
# Source: torch/nn/modules/module.py (_load_from_state_dict), Tensor.copy_ of compressed tensors.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/buffer.py" <<'PYTHON'
import torch


def model_of(graph, layout):
    model = torch.nn.Module()
    model.register_buffer('adj', graph.to_sparse(layout=layout))
    return model


for layout in (torch.sparse_coo, torch.sparse_csr):
    saved = model_of(torch.eye(3), layout).state_dict()
    for edges, graph in {3: torch.eye(3).flip(0), 9: torch.ones(3, 3)}.items():
        try:
            model_of(graph, layout).load_state_dict(saved)
            print(f'{layout}: 3 into {edges} works;', end=' ')
        except RuntimeError:
            print(f'{layout}: 3 into {edges} RuntimeError;', end=' ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="torch.sparse_coo: 3 into 3 works; torch.sparse_coo: 3 into 9 works; torch.sparse_csr: 3 into 3 works; torch.sparse_csr: 3 into 9 RuntimeError;"
seen=$("$folder/venv/bin/python" -W ignore "$folder/buffer.py" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
