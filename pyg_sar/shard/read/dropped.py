"""Says of an attribute that the cut dropped why it is not there."""

from __future__ import annotations

from typing import Any

from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from pyg_sar.shard.format.file_names import type_name


def tell_of_dropped(data: Any, dropped: dict[str, dict[str, str]]) -> None:
    """Makes ``data.name`` and ``data['name']`` of a dropped attribute say what to do.

    `dropped` has what each was, by type and name. ``'name' in data``, ``hasattr`` and ``get`` are
    as for any name that is not there. Of a HeteroData only stores of a type tell.
    """
    for store in data.stores:
        texts = dropped.get('' if store._key is None else type_name(store._key))
        told = _TOLD.get(type(store))
        if texts and told is not None:
            object.__setattr__(store, '__class__', told)  # PyG's own takes it for an attribute
            vars(store)['_dropped'] = texts


class _Told:
    """A store of PyG that knows what was dropped."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError as error:
            raise _explained(error, self, name) from None

    def __getitem__(self, name: str) -> Any:
        try:
            return super().__getitem__(name)  # type: ignore[misc]
        except KeyError as error:
            raise _explained(error, self, name) from None


def _explained(error: Exception, store: Any, name: str) -> Exception:
    what = vars(store).get('_dropped', {}).get(name)
    if what is None:
        return error
    return type(error)(
        f"expected an attribute that a partition folder can hold (got '{name}', {what}, which was "
        f'dropped when the graph was cut; save it to a file of its own and load it on every rank: '
        f"data.{name} = torch.load('{name}.pt', weights_only=False))"
    )


class _Graph(_Told, GlobalStorage):
    pass


class _Nodes(_Told, NodeStorage):
    pass


class _Edges(_Told, EdgeStorage):
    pass


_TOLD = {GlobalStorage: _Graph, NodeStorage: _Nodes, EdgeStorage: _Edges}
