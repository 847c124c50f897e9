#!/usr/bin/env bash
# Guess: what a SAGEConv can do depends on its own arguments. With aggr='mean' it takes a sparse
# matrix, whatever other SAGEConvs the program has made before.
#
# So it is (torch_geometric 2.8.1): the first instance of a class decides for all that come later.
# PyG generates the code of `propagate` once for a class, and leaves the branch for sparse matrices
# out if the first instance cannot use it, as with aggr=['mean', 'max']. Each later SAGEConv, with
# aggr='mean' too, raises NotImplementedError for a sparse matrix. In the other order both work.
#
# Why it matters: a model with two kinds of layers works or fails by the order of its constructors;
# tests that pass alone fail after others in one process.
#
# Source: torch_geometric/nn/conv/message_passing.py (_set_jittable_templates), propagate.jinja.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/convs.py" <<'PYTHON'
import sys
import warnings

import torch
from torch_geometric.nn import SAGEConv

warnings.simplefilter('ignore')
x = torch.ones(3, 2)
matrix = torch.eye(3).to_sparse_csr()
if sys.argv[1] == 'after another':
    SAGEConv(2, 2, aggr=['mean', 'max'])
try:
    print(tuple(SAGEConv(2, 2, aggr='mean')(x, matrix).shape))
except NotImplementedError as error:
    print(f'NotImplementedError: {error}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="alone: (3, 2); after another: NotImplementedError: 'message_and_aggregate' not implemented"
run() { "$folder/venv/bin/python" -W ignore "$folder/convs.py" "$1"; }
seen="alone: $(run alone); after another: $(run 'after another')"
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
