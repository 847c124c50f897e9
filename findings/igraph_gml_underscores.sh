#!/usr/bin/env bash
# Guess: an attribute 'train_mask' is still 'train_mask' after igraph has written and read GML.
#
# So it is (igraph 1.0.0): GML's names have no underscore, so igraph writes 'trainmask', without an
# error. networkx 3.6.1 writes 'train_mask' into its GML, against the format, and igraph reads that.
#
# Why it matters: masks and edge weights are not found under the names of PyG: train_mask,
# edge_weight, node_type. GML has no bool either: True is read as 1.0.
#
# Source: igraph src/io/gml.c; networkx issue 2131.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check networkx==3.6.1 igraph==1.0.0

cat > "$folder/names.py" <<'PYTHON'
import sys
import warnings

import igraph
import networkx

warnings.simplefilter('ignore')


def names():
    return sorted(set(igraph.Graph.Read_GML(sys.argv[1]).vs.attributes()) - {'id', 'label'})


graph = igraph.Graph([(0, 1)])
graph.vs['train_mask'] = [True, False]
graph.write_gml(sys.argv[1])
print('written by igraph:', names(), end='; ')
graph = networkx.Graph([(0, 1)])
networkx.set_node_attributes(graph, {0: True, 1: False}, 'train_mask')
networkx.write_gml(graph, sys.argv[1])
print('by networkx:', names())
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(networkx|igraph)'
expected="written by igraph: ['trainmask']; by networkx: ['train_mask']"
seen=$("$folder/venv/bin/python" "$folder/names.py" "$folder/graph.gml")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
