#!/usr/bin/env bash
# Guess: an argument of `message` with a default works as in any function of Python. With
# `cap=math.inf` nothing is capped; with `options=OPTIONS` the message reads the dict as it is now.
#
# So it is (torch_geometric 2.8.1): PyG writes the text of the default into the code of `propagate`
# that it generates. The text of math.inf is `inf`, so the first propagate raises a NameError. A dict
# is copied when the first conv of the class is made: propagate does not see later changes.
#
# Why it matters: a schedule that a program keeps in a dict stays at its first value.
# Source: torch_geometric/nn/conv/collect.jinja ("Collect default arguments").
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    torch==2.13.0 torch_geometric==2.8.1 numpy

cat > "$folder/convs.py" <<'PYTHON'
import math

import torch
from torch_geometric.nn import MessagePassing

OPTIONS = {'scale': 1.0}
x, edge_index = torch.ones(2, 1), torch.tensor([[0], [1]])


class Scaled(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, options=OPTIONS):
        return x_j * options['scale']


class Capped(MessagePassing):
    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, cap=math.inf):
        return x_j.clamp(max=cap)


conv = Scaled()
OPTIONS['scale'] = 3.0
print(f'propagate {conv(x, edge_index)[1].item()}, message {conv.message(x)[1].item()}', end='; ')
try:
    print(Capped()(x, edge_index)[1].item())
except NameError as error:
    print(f'NameError: {error}')
PYTHON

"$folder/venv/bin/pip" list 2> /dev/null | grep -E '^torch'
expected="propagate 1.0, message 3.0; NameError: name 'inf' is not defined"
seen=$("$folder/venv/bin/python" -W ignore "$folder/convs.py")
echo "expected: $expected"
echo "seen:     $seen"
[ "$seen" = "$expected" ]
