#!/usr/bin/env bash
# Guess: under autocast to bfloat16 on a CPU a sparse CSR matrix times x gives bfloat16, as a COO
# matrix or a dense one does; torch.sparse.mm is not on autocast's list and stays in float32.
#
# So it is (torch 2.13.0, torch_geometric 2.8.1, wheels for x86): both are cast, and MKL's product of
# CSR matrices has no bfloat16: NotImplementedError. COO works. So one adj_t works in a SAGEConv with
# aggr='mean' or 'max', which go another way, and fails in a GCNConv or with aggr='sum'.
#
# Why it matters: whether adj_t and mixed precision go together depends on the aggregation.
#
# Source: torch_geometric/utils/_spmm.py (spmm); the message is that of addmm_out_sparse_csr_impl_mkl.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/autocast.py" <<'PYTHON'
import torch
from torch_geometric.nn import GCNConv, SAGEConv

x, csr = torch.ones(3, 2), torch.eye(3).to_sparse_csr()
products = {
    'COO': lambda: csr.to_sparse() @ x,
    'CSR': lambda: csr @ x,
    'sparse.mm': lambda: torch.sparse.mm(csr, x),
    'mean': lambda: SAGEConv(2, 2, aggr='mean')(x, csr),
    'sum': lambda: SAGEConv(2, 2, aggr='sum')(x, csr),
    'GCN': lambda: GCNConv(2, 2)(x, csr),
}
for name, product in products.items():
    with torch.autocast('cpu', torch.bfloat16):
        try:
            said = str(product().dtype).removeprefix('torch.')
        except NotImplementedError:
            said = 'NotImplementedError'
    print(f'{name} {said};', end=' ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
failed='NotImplementedError'
expected="COO bfloat16; CSR $failed; sparse.mm $failed; mean bfloat16; sum $failed; GCN $failed;"
seen=$("$folder/venv/bin/python" -W ignore "$folder/autocast.py" | sed 's/ $//')
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
