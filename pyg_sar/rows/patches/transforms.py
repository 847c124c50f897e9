"""Which transforms of PyG have a meaning on a part of a graph, or on rows of all ranks."""

from __future__ import annotations

import functools
from typing import Any

from torch_geometric.data.data import BaseData
from torch_geometric.transforms import BaseTransform

from pyg_sar.rows.edges import EdgeIndex
from pyg_sar.rows.rows import inside
from pyg_sar.shard.edges import LocalEdges

_BY_ROW = {
    *('Compose', 'ComposeFilters', 'Constant', 'ToDevice'),
    *('AddRemainingSelfLoops', 'AddSelfLoops', 'LinearTransformation', 'RemoveSelfLoops'),
    *('RemoveTrainingClasses', 'ToSparseTensor'),
}
"""Transforms of PyG that change a part as they change the whole graph."""

_INSTEAD = {
    'RandomLinkSplit': 'apply it to the data of pyg_sar.load_shard, before pyg_sar.local',
    'LaplacianLambdaMax': 'apply it before the cut, by --transform; in a forward write '
    'T.LaplacianLambdaMax()(Data(edge_index=pyg_sar.gather(edge_index), num_nodes=x.size(0)))',
}


def refuse_on_parts() -> None:
    """Has every other transform of PyG refuse a part of a graph, from now on in this process.

    They would take statistics, draw, or look for neighbours in one part, without an error. On rows
    of all ranks they run; where a function inside of one is refused, the error names the transform.
    """
    call = BaseTransform.__call__
    if hasattr(call, '__wrapped__'):
        return

    @functools.wraps(call)
    def __call__(self: BaseTransform, data: Any) -> Any:
        name = type(self).__name__
        is_known = type(self).__module__.startswith('torch_geometric.') and name not in _BY_ROW
        if not is_known or not isinstance(data, BaseData):
            return call(self, data)
        if _has(LocalEdges, data):
            raise ValueError(f'T.{name} means nothing on a cut graph: {_instead(name)}')
        if not _has(EdgeIndex, data):
            return call(self, data)
        with inside.set(f'T.{name} means nothing on a cut graph: {_instead(name)}'):
            return call(self, data)

    BaseTransform.__call__ = __call__


def _instead(name: str) -> str:
    whole = 'apply it to the whole graph before it is cut'
    return _INSTEAD.get(name, f"{whole} (python -m pyg_sar.partition --transform '{name}')")


def _has(edges: type, data: BaseData) -> bool:
    return any(isinstance(value, edges) for store in data.edge_stores for value in store.values())
