"""Says of an attribute that the cut dropped why it is not there."""

from __future__ import annotations

from typing import Any

from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage

from pyg_sar.shard.file_names import type_name


def tell_of_dropped(data: Any, dropped: dict[str, dict[str, str]]) -> None:
    """Makes ``data.name`` and ``data['name']`` of a dropped attribute say what to do.

    `dropped` has what each was, by type and name. ``'name' in data``, ``hasattr`` and ``get`` are
    as for any name that is not there. What belongs to a HeteroData as a whole is told by
    ``data.stores[0]``.
    """
    for store in data.stores:
        texts = dropped.get('' if store._key is None else type_name(store._key))
        told = _TOLD.get(type(store))
        if texts and told is not None:
            object.__setattr__(store, '__class__', told)  # PyG's own takes it for an attribute
            vars(store)['_dropped'] = texts


def _explained(error: Exception, store: Any, name: str) -> Exception:
    what = vars(store).get('_dropped', {}).get(name)
    if what is None:
        return error
    return type(error)(
        f"expected an attribute that a partition folder can hold (got '{name}', {what}, which was "
        f'dropped when the graph was cut; save it to a file of its own and load it on every rank: '
        f"data.{name} = torch.load('{name}.pt', weights_only=False))"
    )


def _attribute(store: Any, name: str) -> Any:
    try:
        return BaseStorage.__getattr__(store, name)
    except AttributeError as error:
        raise _explained(error, store, name) from None


def _item(store: Any, name: str) -> Any:
    try:
        return BaseStorage.__getitem__(store, name)
    except KeyError as error:
        raise _explained(error, store, name) from None


# A common base of ours would have another layout than PyG's, and no store could become one.
class _Whole(BaseStorage):
    __getattr__, __getitem__ = _attribute, _item


class _Graph(GlobalStorage):
    __getattr__, __getitem__ = _attribute, _item


class _Nodes(NodeStorage):
    __getattr__, __getitem__ = _attribute, _item


class _Edges(EdgeStorage):
    __getattr__, __getitem__ = _attribute, _item


_TOLD: dict[type[BaseStorage], type[BaseStorage]] = {
    BaseStorage: _Whole,
    GlobalStorage: _Graph,
    NodeStorage: _Nodes,
    EdgeStorage: _Edges,
}
