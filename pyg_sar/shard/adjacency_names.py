"""How a partition says that its edges are the entries of ``data.adj_t``."""

from __future__ import annotations

from dataclasses import dataclass

VALUE = 'edge_value_of_adj_t'
"""The attribute of edges with the values of the matrix, if it has some."""

LAYOUT = 'layout_of_adj_t'
"""The attribute of the graph with the text of :class:`Kind`."""


@dataclass(frozen=True)
class Kind:
    """What the matrix was.

    Attributes:
        name: ``'coo'``, ``'csr'`` or ``'csc'`` of torch, or ``'SparseTensor'``.
        has_edge_index: Whether the graph has ``edge_index`` beside it.
    """

    name: str
    has_edge_index: bool

    @property
    def text(self) -> str:
        """As it stands in META.json."""
        return self.name + ' and edge_index' * self.has_edge_index

    @classmethod
    def of(cls, text: str) -> Kind:
        """What :attr:`text` says."""
        return cls(text.split()[0], has_edge_index=' and ' in text)
