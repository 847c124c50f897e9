#!/usr/bin/env bash
# Guess: after T.RemoveIsolatedNodes() a graph has no isolated nodes; a node with nothing but an edge
# to itself is isolated, and goes.
#
# So it is (torch_geometric 2.8.1): has_isolated_nodes() counts such a node as isolated, and the
# transform keeps it. After T.AddSelfLoops() the transform removes nothing at all.
#
# Why it matters: "remove isolated nodes until there are none" never ends, and the number of nodes
# depends on whether self loops were added before or after.
#
# Source: torch_geometric/transforms/remove_isolated_nodes.py, torch_geometric/utils/isolated.py.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/isolated.py" <<'PYTHON'
import torch
from torch_geometric import transforms as T
from torch_geometric.data import Data

# Node 2 has a loop, node 3 has no edge.
edges = torch.tensor([[0, 1, 2], [1, 0, 2]])
data = T.RemoveIsolatedNodes()(Data(x=torch.ones(4, 1), edge_index=edges))
print(f'{data.num_nodes} nodes stay, isolated ones: {data.has_isolated_nodes()}', end='; ')
looped = T.AddSelfLoops()(Data(x=torch.ones(4, 1), edge_index=edges))
print(f'after AddSelfLoops {T.RemoveIsolatedNodes()(looped).num_nodes}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="3 nodes stay, isolated ones: True; after AddSelfLoops 4"
seen=$("$folder/venv/bin/python" -W ignore "$folder/isolated.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
