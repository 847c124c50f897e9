#!/usr/bin/env bash
# Guess: Graph.Adjacency wants numbers of edges, so igraph raises an error for a matrix with 0.5.
#
# So it is (igraph 1.0.0): it cuts the fraction off. 0.5 is no edge, 1.9 is one edge, and nothing is
# said. A matrix of weights below 1 becomes a graph without edges. Weighted_Adjacency keeps them.
#
# Why it matters: a normalized adjacency, attention scores or similarities are such matrices.
#
# Source: igraph/io/adjacency.py (_construct_graph_from_adjacency).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check igraph==1.0.0

cat > "$folder/weights.py" <<'PYTHON'
import igraph

matrix = [[0, 0.5, 1.9], [0.5, 0, 0.9], [1.9, 0.9, 0]]
counted = igraph.Graph.Adjacency(matrix, mode='undirected')
weighted = igraph.Graph.Weighted_Adjacency(matrix, mode='undirected')
print(f'Adjacency: {counted.get_edgelist()}; Weighted_Adjacency: {weighted.get_edgelist()}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^igraph'
expected="Adjacency: [(0, 2)]; Weighted_Adjacency: [(0, 1), (0, 2), (1, 2)]"
seen=$("$folder/venv/bin/python" "$folder/weights.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
