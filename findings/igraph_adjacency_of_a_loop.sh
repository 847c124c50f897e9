#!/usr/bin/env bash
# Guess: the adjacency matrix of an undirected graph has 1 for a self loop, in each form that igraph
# gives: get_adjacency() and get_adjacency_sparse().
#
# So it is (igraph 1.0.0): the first says 2, the second 1. Graph.Adjacency() reads the diagonal as
# the number of loops, so a graph that goes through get_adjacency() and back has twice its loops.
#
# Why it matters: GCN's normalization divides by sums of rows. With a loop at each node, the usual
# step before it, the two matrices of one graph give two models.
#
# Source: igraph/adjacency.py (_get_adjacency, _get_adjacency_sparse), igraph/io/adjacency.py.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    igraph==1.0.0 scipy==1.17.1 numpy==2.4.6

cat > "$folder/loop.py" <<'PYTHON'
import igraph

graph = igraph.Graph([(0, 1), (1, 1)])
dense, sparse = graph.get_adjacency(), graph.get_adjacency_sparse()
again = igraph.Graph.Adjacency(dense, mode='undirected')
print(f'dense {dense[1][1]}, sparse {sparse[1, 1]}, loops after a round trip {sum(again.is_loop())}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(igraph|scipy)'
expected="dense 2, sparse 1, loops after a round trip 2"
seen=$("$folder/venv/bin/python" "$folder/loop.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
