#!/usr/bin/env bash
# Guess: METIS's objective 'volume' is an option as others: pymetis takes it for any number of
# parts, and where a method cannot use it, the option is passed over.
#
# So it is (pymetis 2025.2.2): it works from 9 parts on. Up to 8 pymetis takes recursive bisection,
# which knows no volume, and raises RuntimeError: Caught an unknown exception! With recursive=False
# it works for 2 to 8 parts, too.
#
# Why it matters: volume is what full-batch training sends, and most begin with 2 to 8 parts.
#
# Source: pymetis/__init__.py (part_graph: recursive = nparts <= 8); METIS's manual, OBJTYPE.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    pymetis==2025.2.2 numpy==2.4.6

cat > "$folder/volume.py" <<'PYTHON'
import pymetis

NODES, VOLUME = 60, 1
ring = [[(i - 1) % NODES, (i + 1) % NODES] for i in range(NODES)]


def cut(parts, **options):
    try:
        pymetis.part_graph(parts, adjacency=ring, options=pymetis.Options(objtype=VOLUME), **options)
    except RuntimeError as error:
        return f'RuntimeError: {error}'
    return 'works'


print(f'9 parts: {cut(9)}; 8 parts: {cut(8)} 8 parts, not recursive: {cut(8, recursive=False)}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -iE '^pymetis'
expected="9 parts: works; 8 parts: RuntimeError: Caught an unknown exception! 8 parts, not recursive: works"
seen=$("$folder/venv/bin/python" "$folder/volume.py" 2> /dev/null | grep -v '^Input Error')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
