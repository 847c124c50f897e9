#!/usr/bin/env bash
# Guess: a Pajek file may hold *Arcs (directed) and *Edges (undirected). igraph makes two directed
# edges of each undirected one; networkx forgets the direction of arcs once it has met *Edges.
#
# So it is (networkx 3.6.1, igraph 1.0.0): one section decides for the whole file. It is the first
# for networkx and the last for igraph, so the two call one file directed and undirected. A graph
# that is directed gets one direction only of the undirected edges.
#
# Why it matters: messages along half of the undirected edges are lost, or arcs send both ways, and
# which of these happens depends on the order of two sections and on the library.
#
# Source: networkx/readwrite/pajek.py (parse_pajek); igraph src/io/pajek-parser.y.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check networkx==3.6.1 igraph==1.0.0

cat > "$folder/read.py" <<'PYTHON'
import sys

import igraph
import networkx

NODES = '*Vertices 3\n1 "a"\n2 "b"\n3 "c"\n'
ARCS = '*Arcs\n1 2 1\n'
EDGES = '*Edges\n2 3 1\n'


def said(is_directed, num_edges):
    return f"{'directed' if is_directed else 'undirected'} {num_edges}"


def read(sections):
    with open(sys.argv[1], 'w') as file:
        file.write(NODES + sections)
    a, b = networkx.read_pajek(sys.argv[1]), igraph.Graph.Read_Pajek(sys.argv[1])
    a, b = said(a.is_directed(), a.number_of_edges()), said(b.is_directed(), b.ecount())
    return f'networkx {a}, igraph {b}'


print(f'arcs first: {read(ARCS + EDGES)}; edges first: {read(EDGES + ARCS)}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(networkx|igraph)'
expected="arcs first: networkx directed 2, igraph undirected 2; edges first: networkx undirected 2, igraph directed 2"
seen=$("$folder/venv/bin/python" "$folder/read.py" "$folder/graph.net")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
