"""``python -m pyg_sar.predict``: what a plain PyG model gives for all nodes, on one machine."""
