#!/usr/bin/env bash
# Guess: T.ToSparseTensor() changes the form of a graph, not the graph: two edges from one node to
# another stay two, or one entry of 2, and a SAGEConv gives the same for edge_index and adj_t.
#
# So it is (torch_geometric 2.8.1 without torch_sparse): parallel edges without weights become one
# entry of 1. A sum over neighbours counts the neighbour once for adj_t, twice for edge_index. With
# weights the entry is their sum, but a mean divides by the number of entries.
#
# Why it matters: multigraphs (payments, messages, many of KONECT) train as other graphs, with
# no message, once adj_t is taken to save memory.
#
# Source: torch_geometric/transforms/to_sparse_tensor.py, utils/sparse.py (to_torch_csr_tensor).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/parallel.py" <<'PYTHON'
import torch
from torch_geometric import transforms as T
from torch_geometric.data import Data
from torch_geometric.nn import SimpleConv

# Node 2 hears node 0 twice, and node 1 once.
x = torch.tensor([[3.0], [9.0], [0.0]])
edges = torch.tensor([[0, 0, 1], [2, 2, 2]])
adj_t = T.ToSparseTensor()(Data(x=x, edge_index=edges)).adj_t
for aggr in ('sum', 'mean'):
    conv = SimpleConv(aggr=aggr)
    print(f'{aggr}: edge_index {conv(x, edges)[2].item()}, adj_t {conv(x, adj_t)[2].item()}', end='; ')
print(f'values {adj_t.values().tolist()}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="sum: edge_index 15.0, adj_t 12.0; mean: edge_index 5.0, adj_t 6.0; values [1.0, 1.0]"
seen=$("$folder/venv/bin/python" -W ignore "$folder/parallel.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
