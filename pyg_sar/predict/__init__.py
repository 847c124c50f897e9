"""Exact predictions of a plain PyG model for all nodes, on one machine: :func:`predict`.

``python -m pyg_sar.predict`` runs ``__main__.py``. The package does not import this room.
"""

from pyg_sar.predict.predict import predict
