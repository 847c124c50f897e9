"""Inference layer by layer, which the models of PyG do by a loader of their own."""

from __future__ import annotations

import functools
from typing import Any

from torch_geometric.nn.models.basic_gnn import BasicGNN


def refuse_inference() -> None:
    """Has ``inference`` of PyG's models refuse the loaders of pyg_sar, from now on in this process.

    They end in an assertion without words.
    """
    inference = BasicGNN.inference

    @functools.wraps(inference)
    def refusing(self: BasicGNN, loader: Any, *args: Any, **options: Any) -> Any:
        if type(loader).__module__.startswith('pyg_sar.'):
            raise ValueError(
                f"'inference' of {type(self).__name__} takes loaders of PyG alone: write "
                'model(data.x, data.edge_index) under torch.no_grad(), which runs every layer over '
                'the whole graph, with all neighbours'
            )
        return inference(self, loader, *args, **options)

    BasicGNN.inference = refusing
