"""Which transforms of PyG have a meaning on a part of a graph."""

from __future__ import annotations

import functools
from typing import Any

from torch_geometric.data.data import BaseData
from torch_geometric.transforms import BaseTransform

from pyg_sar.shard.edge_index import ShardEdgeIndex

_BY_ROW = {
    *('Compose', 'ComposeFilters', 'Constant', 'ToDevice'),
    *('AddRemainingSelfLoops', 'AddSelfLoops', 'LinearTransformation', 'RemoveSelfLoops'),
    'RemoveTrainingClasses',
}
"""Those of torch_geometric.transforms that give every part what it has of the whole graph."""


def refuse_on_parts() -> None:
    """Has every other transform of PyG refuse a part of a graph, from now on in this process.

    They would take statistics, draw, or look for neighbours in one part, without an error.
    """
    call = BaseTransform.__call__
    if hasattr(call, '__wrapped__'):
        return

    @functools.wraps(call)
    def __call__(self: BaseTransform, data: Any) -> Any:
        name = type(self).__name__
        is_known = type(self).__module__.startswith('torch_geometric.') and name not in _BY_ROW
        if is_known and isinstance(data, BaseData) and _is_part(data):
            raise ValueError(
                f'T.{name} means nothing on a cut graph: apply it to the whole graph before '
                f"it is cut (python -m pyg_sar.partition --transform '{name}')"
            )
        return call(self, data)

    BaseTransform.__call__ = __call__


def _is_part(data: BaseData) -> bool:
    stores = data.edge_stores
    return any(isinstance(value, ShardEdgeIndex) for store in stores for value in store.values())
