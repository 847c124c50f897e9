#!/usr/bin/env bash
# Guess: mmwrite sees that a matrix is symmetric, at any size, and writes one triangle of it.
#
# So it is (scipy 1.17.1): it looks only if no dimension reaches 100. The adjacency of a path of 99
# nodes is written as 'symmetric', that of 100 nodes as 'general' with twice the lines. The default
# is symmetry='AUTO'; symmetry=None looks at any size.
#
# Why it matters: a reader of .mtx files that was tried on a small graph has seen 'symmetric' alone,
# and a graph of real size comes with the other header, and with both directions of each edge.
#
# Source: scipy/io/_fast_matrix_market/__init__.py (mmwrite, ALWAYS_FIND_SYMMETRY).
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check scipy==1.17.1 numpy==2.4.6

cat > "$folder/write.py" <<'PYTHON'
import io

import numpy as np
from scipy.io import mmwrite
from scipy.sparse import coo_array


def header(nodes, **options):
    """The word for symmetry, and the number of lines, of a path written as a .mtx file."""
    a, b = np.arange(nodes - 1), np.arange(1, nodes)
    at = np.concatenate([a, b]), np.concatenate([b, a])
    out = io.BytesIO()
    mmwrite(out, coo_array((np.ones(2 * nodes - 2), at), shape=(nodes, nodes)), **options)
    lines = out.getvalue().decode().splitlines()
    return f"{lines[0].split()[-1]} {lines[2].split()[-1]}"


print(f'99 nodes: {header(99)}; 100 nodes: {header(100)}; None: {header(100, symmetry=None)}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^(scipy|numpy)'
expected="99 nodes: symmetric 98; 100 nodes: general 198; None: symmetric 99"
seen=$("$folder/venv/bin/python" "$folder/write.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
