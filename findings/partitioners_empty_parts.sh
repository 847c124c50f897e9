#!/usr/bin/env bash
# Guess: 20 nodes in a path, cut into 16 parts, give 16 parts with a node or two each.
#
# So it is (pymetis 2025.2.2, which is METIS; kaminpar 3.7.3): both leave parts without a node, while
# others have two or more. Neither says so.
#
# Why it matters: with one process for each part, a process has no rows: the mean of its loss is NaN.
# Count the nodes of each part before training on a small graph.
#
# Source: JuliaSparse/Metis.jl issue 30, KarypisLab/METIS issue 91 (the same, of METIS).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pymetis==2025.2.2 kaminpar==3.7.3 numpy==2.4.6

cat > "$folder/parts.py" <<'PYTHON'
import sys

import kaminpar
import pymetis

NODES, PARTS = 20, 16
path = [[j for j in (i - 1, i + 1) if 0 <= j < NODES] for i in range(NODES)]
with open(sys.argv[1], 'w') as file:
    file.write(f'{NODES} {NODES - 1}\n')
    file.writelines(' '.join(str(j + 1) for j in row) + '\n' for row in path)
graph = kaminpar.load_graph(sys.argv[1], kaminpar.GraphFileFormat.METIS)
by_kaminpar = kaminpar.KaMinPar(1, kaminpar.default_context()).compute_partition(graph, k=PARTS)
by_metis = pymetis.part_graph(PARTS, adjacency=path).vertex_part
said = ['all used' if len(set(parts)) == PARTS else 'some empty' for parts in (by_metis, by_kaminpar)]
print(f'METIS: {said[0]}; KaMinPar: {said[1]}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -iE '^(pymetis|kaminpar)'
expected="METIS: some empty; KaMinPar: some empty"
seen=$("$folder/venv/bin/python" "$folder/parts.py" "$folder/path.graph")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
