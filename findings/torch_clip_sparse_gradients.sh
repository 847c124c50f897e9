#!/usr/bin/env bash
# Guess: clip_grad_norm_ takes the sparse gradient of nn.Embedding(sparse=True), adds up the rows of
# a node that was looked up twice, and gives the norm of the sum.
#
# So it is (torch 2.13.0): it raises NotImplementedError. The norm it needs is there: gradient.norm()
# gives 2.0, but clip_grad_norm_ asks torch.linalg.vector_norm, which takes no sparse tensor.
#
# Why it matters: PyG's Node2Vec and knowledge graph models have such gradients with sparse=True, for
# SparseAdam; clipping them is not one more line.
#
# Source: torch/nn/utils/clip_grad.py (_get_total_norm).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/clip.py" <<'PYTHON'
import torch

table = torch.nn.Embedding(3, 1, sparse=True)
table(torch.tensor([1, 1])).sum().backward()
gradient = table.weight.grad


def said(norm):
    try:
        return float(norm())
    except NotImplementedError:
        return 'NotImplementedError'


clip = torch.nn.utils.clip_grad_norm_
print('clip_grad_norm_', said(lambda: clip(table.parameters(), 1.0)), end=', ')
print('vector_norm', said(lambda: torch.linalg.vector_norm(gradient)), end=', ')
print('norm()', said(gradient.norm))
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="clip_grad_norm_ NotImplementedError, vector_norm NotImplementedError, norm() 2.0"
seen=$("$folder/venv/bin/python" -W ignore "$folder/clip.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
