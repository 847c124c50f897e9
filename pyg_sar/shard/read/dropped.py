"""Says of an attribute that the cut dropped why it is not there."""

from __future__ import annotations

from typing import Any

from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage

from pyg_sar.shard.format.file_names import type_name


def tell_of_dropped(data: Any, dropped: dict[str, dict[str, str]]) -> None:
    """Makes ``data.name`` and ``data['name']`` of a dropped attribute say what to do.

    `dropped` has what each was, by type and name. ``'name' in data``, ``hasattr`` and ``get`` are
    as for any name that is not there.
    """
    for store in data.stores:
        texts = dropped.get('' if store._key is None else type_name(store._key))
        told = _TOLD.get(type(store))
        if texts and told is not None:
            store.__class__ = told
            vars(store)['_dropped'] = texts


class _Told:
    """A store of PyG that knows what was dropped."""

    def __getattr__(self, name: str) -> Any:
        text = _text(self, name)
        if text is not None:
            raise AttributeError(text)
        return super().__getattr__(name)  # type: ignore[misc]

    def __getitem__(self, name: str) -> Any:
        text = _text(self, name)
        if text is not None:
            raise KeyError(text)
        return super().__getitem__(name)  # type: ignore[misc]


def _text(store: Any, name: str) -> str | None:
    what = vars(store).get('_dropped', {}).get(name)
    if what is None or name in vars(store).get('_mapping', {}):
        return None
    return (
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
