"""The published scripts of PyG, and the lines of them that change."""

from __future__ import annotations

from scripts import Script

_TO = "optimizer = torch.optim"

SCRIPTS = [
    Script('examples/agnn.py', loop='range(1, 201)'),
    Script('examples/arma.py', loop='range(1, 401)'),
    Script('examples/gat.py', '--epochs 3'),
    Script('examples/gcn.py', '--epochs 3'),
    Script(
        'examples/gcn.py', '--epochs 3 --use_gdc',
    ),
    Script('examples/tagcn.py', loop='range(1, 201)'),
    Script('examples/hetero/han_imdb.py', loop='range(1, 200)'),
]
