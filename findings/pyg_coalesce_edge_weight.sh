#!/usr/bin/env bash
# Guess: data.coalesce() merges duplicate edges and adds up what they carry: edge_attr, edge_weight
# and any other attribute of edges.
#
# So it is (torch_geometric 2.8.1): it knows edge_attr only. edge_weight, and every other tensor with
# a row for each edge, stays as it was: in the old order and with the old length. Nothing is said.
# T.RemoveDuplicatedEdges() knows edge_attr and edge_weight, and leaves all others so.
#
# Why it matters: with as many edges as before (only sorted) each weight is at another edge.
# torch_geometric.utils.coalesce takes a list of attributes.
#
# Source: torch_geometric/data/storage.py (EdgeStorage.coalesce), and
# torch_geometric/transforms/remove_duplicated_edges.py.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/coalesce.py" <<'PYTHON'
import torch
from torch_geometric.data import Data

edges = torch.tensor([[1, 0, 0], [0, 1, 1]])
weight = torch.tensor([4.0, 1.0, 2.0])
data = Data(edge_index=edges, edge_attr=weight, edge_weight=weight, num_nodes=2).coalesce()
print(f'{data.num_edges} edges, edge_attr {data.edge_attr.tolist()},', end=' ')
print(f'edge_weight {data.edge_weight.tolist()}', end='; ')
edges, weight = edges[:, :2], weight[:2]
data = Data(edge_index=edges, edge_weight=weight, num_nodes=2).coalesce()
print(f'without duplicates: {data.edge_index.tolist()}, edge_weight {data.edge_weight.tolist()}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="2 edges, edge_attr [3.0, 4.0], edge_weight [4.0, 1.0, 2.0]; without duplicates: [[0, 1], [1, 0]], edge_weight [4.0, 1.0]"
seen=$("$folder/venv/bin/python" -W ignore "$folder/coalesce.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
