#!/usr/bin/env bash
# Guess: a GraphML attribute of type 'long' or 'int' is a Python int once igraph has read it.
#
# So it is (igraph 1.0.0; networkx 3.6.1 wrote the file): every number becomes a float. Integers
# above 2**53 are other numbers after that: 2**53 + 1 is read as 2**53.
#
# Why it matters: labels come as floats, which cross_entropy refuses or takes for probabilities, and
# two long ids of nodes can become one.
#
# Source: igraph src/io/graphml.c (types of attributes: numeric, boolean, string).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check networkx==3.6.1 igraph==1.0.0

cat > "$folder/labels.py" <<'PYTHON'
import sys

import igraph
import networkx

graph = networkx.Graph([('a', 'b')])
networkx.set_node_attributes(graph, {'a': 3, 'b': 2**53 + 1}, 'y')
networkx.write_graphml(graph, sys.argv[1])
again = networkx.read_graphml(sys.argv[1])
print('networkx', [again.nodes[node]['y'] for node in 'ab'], end=', ')
print('igraph', igraph.Graph.Read_GraphML(sys.argv[1]).vs['y'])
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(networkx|igraph)'
expected="networkx [3, 9007199254740993], igraph [3.0, 9007199254740992.0]"
seen=$("$folder/venv/bin/python" "$folder/labels.py" "$folder/graph.graphml")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
