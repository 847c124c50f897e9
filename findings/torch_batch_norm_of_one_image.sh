#!/usr/bin/env bash
# Guess: the gradient of batch_norm does not depend on the strides of the gradient that it gets. Of a
# tensor [1, C, N, T], the nodes and times of one graph, `h.squeeze(0).permute(1, 2, 0)` and
# `h.permute(0, 2, 3, 1)[0]` are the same numbers, so both give x one gradient, the right one.
#
# So it is not (torch 2.13.0 and 2.14.1, CPU): after squeeze(0) the gradient of x is wrong, without a
# word; it misses the difference quotient. Where the input is contiguous and the gradient has the
# channels last, with another stride in the dimension of size 1, backward takes it for contiguous.
# Larger batches, 3 dimensions and a contiguous gradient are right.
#
# Why it matters: STGCN and its kin normalise [1, C, N, T] and take nodes to the front for `A @ h`.
#
# Source: aten/src/ATen/native/Normalization.cpp (batch_norm_backward_cpu) compares suggested formats.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy

cat > "$folder/gradient.py" <<'PYTHON'
import torch
from torch.nn.functional import batch_norm

torch.manual_seed(0)
x0, matrix = torch.randn(1, 3, 60, 2).double(), torch.randn(60, 60).double()
direction = torch.randn_like(x0)
ways = {
    'squeeze, permute': lambda h: h.squeeze(0).permute(1, 2, 0),
    'permute, select': lambda h: h.permute(0, 2, 3, 1)[0],
    'permute, squeeze': lambda h: h.permute(0, 2, 3, 1).squeeze(0),
}


def loss(x, way):
    h = way(batch_norm(x, None, None, training=True))
    return (matrix @ h.reshape(60, 6)).pow(3).mean()


for name, way in ways.items():
    x, step = x0.clone().requires_grad_(), 1e-5 * direction
    loss(x, way).backward()
    slope = (loss(x0 + step, way) - loss(x0 - step, way)) / 2e-5
    is_right = torch.isclose((x.grad * direction).sum(), slope, rtol=1e-4)
    print(name, 'right' if is_right else 'wrong', end='; ')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected='squeeze, permute wrong; permute, select right; permute, squeeze right; '
seen=$("$folder/venv/bin/python" -W ignore "$folder/gradient.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
