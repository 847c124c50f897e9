#!/usr/bin/env bash
# Guess: igraph reads the GraphML that networkx writes, also if a feature is 1 at one node and 0.5
# at another.
#
# So it is (networkx 3.6.1, igraph 1.0.0): for an int and a float under one name networkx writes two
# keys of the same name, one for each type. igraph refuses the file: duplicate attribute name.
#
# Why it matters: one weight that is a whole number makes a graph that cannot be read elsewhere.
# Make floats of all values of an attribute before writing.
#
# Source: networkx/readwrite/graphml.py (GraphMLWriter.get_key); igraph src/io/graphml.c.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check networkx==3.6.1 igraph==1.0.0

cat > "$folder/mixed.py" <<'PYTHON'
import sys

import igraph
import networkx


def read_by_igraph(second):
    graph = networkx.Graph([('a', 'b')])
    networkx.set_node_attributes(graph, {'a': 0.5, 'b': second}, 'x')
    networkx.write_graphml(graph, sys.argv[1])
    try:
        return igraph.Graph.Read_GraphML(sys.argv[1]).vs['x']
    except igraph.InternalError as error:
        return 'refused' if 'Duplicate attribute name' in str(error) else str(error)


print(f'0.5 and 1.0: {read_by_igraph(1.0)}; 0.5 and 1: {read_by_igraph(1)}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(networkx|igraph)'
expected="0.5 and 1.0: [0.5, 1.0]; 0.5 and 1: refused"
seen=$("$folder/venv/bin/python" "$folder/mixed.py" "$folder/graph.graphml")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
